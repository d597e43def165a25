"""`lm-eval` tasks on a model's output stream.

    context ──▶ first input │ all streams run, many sessions at once │ external output ──▶ cut at `until`

lm-eval is not needed by anything else here, so it is imported when the first `BraidLM` is made:

    import lm_eval
    from braid.eval.lm import BraidLM

    lm_eval.simple_evaluate(model=BraidLM("smollm2-135m"), tasks=["gsm8k"])
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from braid.errors import InputError
from braid.eval.answering import Answering, Wish
from braid.eval.likelihood import Likelihood, Likely
from braid.eval.play import AT_ONCE
from braid.model.chat import Chat
from braid.model.loading import load
from braid.model.model import Model
from braid.streams.presets import topology as as_topology
from braid.streams.sampling import SamplingSpec
from braid.streams.strict import hint
from braid.streams.topology import Topology

__all__ = ["BraidLM", "register", "wish_of"]

MAX_GEN_TOKS = 256
"""Tokens of an answer where the task does not say."""
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens")
_FILTERS = ("top_k", "top_p", "min_p")
_KNOWN = (
    "until",
    "do_sample",
    "temperature",
    *_FILTERS,
    "repetition_penalty",
    "seed",
    "num_beams",
    *_LENGTHS,
)


def wish_of(settings: Mapping[str, Any]) -> Wish:
    """What a task's `generation_kwargs` mean.

    Raises:
        InputError: One of them is not known here, or asks for a search over several beams.
        SamplingError: A value lies out of range.
    """
    unknown = [name for name in settings if name not in _KNOWN]
    if unknown:
        raise InputError(
            f"generation_kwargs has {unknown[0]!r}, which has no meaning here; {hint(unknown[0], _KNOWN)}"
        )
    if settings.get("num_beams") not in (None, 1):
        raise InputError(
            f"num_beams is {settings['num_beams']}; streams choose one token at a time, so leave it out"
        )
    until: Any = settings.get("until") or ()
    until = (until,) if isinstance(until, str) else until
    length = next((settings[name] for name in _LENGTHS if settings.get(name) is not None), MAX_GEN_TOKS)
    temperature = settings.get("temperature")
    is_greedy = temperature == 0 or not settings.get("do_sample", bool(temperature))
    chosen: dict[str, Any] = {"temperature": 0.0 if is_greedy else float(temperature or 1.0)}
    if not is_greedy:  # greedy choice knows no filters, and tasks set them all the same
        chosen |= {name: settings[name] for name in _FILTERS if settings.get(name) not in (None, 0)}
    for name in ("repetition_penalty", "seed"):
        if settings.get(name) is not None:
            chosen[name] = settings[name]
    return Wish(tuple(text for text in until if text), int(length), SamplingSpec(**chosen))


class BraidLM:
    """A model behind lm-eval's usual interface; an instance is an `lm_eval.api.model.LM`.

    `generate_until` runs whole sessions and returns what the external output said. `loglikelihood` is exact where it is
    defined, in ordinary generation, and refused elsewhere (`braid.eval.likelihood`).

    Args:
        model: From `braid.load`, or a name for it.
        topology: A preset's name, a YAML file or a `Topology`; the context goes to its first input.
        output: The stream that answers; None takes the only external one.
        is_bare: In views, continue the context as it is, without the model's chat template, as lm-eval does with base
            models.
        kv_tokens: Size of the cache; None chooses.
        batch_size: Sessions at once; None or `auto` chooses.
        max_batch_size: The most sessions at once, where `batch_size` is `auto`.
        device: Of a model that is given by name.
        seed: Of all sampling noise; every request has noise of its own.
        on_progress: Is told how many answers are done, and of how many.

    Raises:
        InputError: lm-eval is not installed, or the topology has no single output to listen to.
    """

    if not TYPE_CHECKING:  # type checkers keep the signature of __init__

        def __new__(cls, *_: object, **__: object) -> Self:  # noqa: D102
            return super().__new__(register() if cls is BraidLM else cls)

    def __init__(
        self,
        model: Model | str,
        topology: Topology | str = "plain",
        *,
        output: str | None = None,
        is_bare: bool = False,
        kv_tokens: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        seed: int = 0,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__()  # of lm-eval's LM, which `register` puts behind this class
        self.model = load(model, device=device or "auto") if isinstance(model, str) else model
        self.topology = as_topology(topology)
        self.output = _output_of(self.topology, output)
        if is_bare and self.topology.decoding != "views":
            raise InputError("is_bare is for topologies of views; native rows have no chat template")
        self.is_bare = is_bare
        is_counted = batch_size is not None and str(batch_size).isdigit()
        self.at_once = max(1, int(batch_size or 1)) if is_counted else (max_batch_size or AT_ONCE)
        self._kv_tokens, self._seed = kv_tokens, seed
        self._on_progress = on_progress

    # ---- what lm-eval asks

    @property
    def tokenizer_name(self) -> str:
        """Tells the caches of two models apart."""
        return self.model.name

    def apply_chat_template(self, *_: object, **__: object) -> str:
        """Refused: the engine puts the template around the input itself.

        Raises:
            InputError: Always.
        """
        raise InputError(
            "Braid puts the model's chat template around the input by itself; leave apply_chat_template out"
        )

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answer every request, in their order.

        Args:
            requests: Each with `args`, a context and its `generation_kwargs`.
            disable_tqdm: There is no bar; `on_progress` is told.

        Raises:
            InputError: A setting that has no meaning here, or an empty context.
            ContextOverflowError, PoolFullError, PoolTooSmallError: There is no room.
        """
        asked = [(str(request.args[0]), wish_of(request.args[1])) for request in requests]
        for context, _ in asked:
            if not context:
                raise InputError("a request has an empty context; an output stream answers to some input")
        answering = Answering(
            self.model,
            self.topology,
            self.output,
            asked,
            chat=Chat(is_bare=True).to_data() if self.is_bare else None,
            at_once=self.at_once,
            kv_tokens=self._kv_tokens,
            seed=self._seed,
            on_progress=self._on_progress,
        )
        answers = answering.run()
        for request, answer in zip(requests, answers, strict=True):
            self._remember("generate_until", request, answer)
        return answers

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[Likely]:
        """Log-probability of each continuation in the output, and whether greedy generation would say it.

        Args:
            requests: Each with `args`, a context and its continuation.
            disable_tqdm: There is no bar.

        Raises:
            UnsupportedByBackend: It is not defined in these streams.
            ContextOverflowError: A pair is longer than the model's context.
        """
        found = self._likelihood().of([(request.args[0], request.args[1]) for request in requests])
        for request, likely in zip(requests, found, strict=True):
            self._remember("loglikelihood", request, likely)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of each whole text.

        Args:
            requests: Each with `args`, the text alone.
            disable_tqdm: There is no bar.

        Raises:
            UnsupportedByBackend: It is not defined in these streams, or a template stands before the text.
        """
        found = self._likelihood().of_whole([request.args[0] for request in requests])
        for request, logprob in zip(requests, found, strict=True):
            self._remember("loglikelihood_rolling", request, logprob)
        return found

    # ---- inside

    def _likelihood(self) -> Likelihood:
        return Likelihood(self.model, self.topology, is_bare=self.is_bare, at_once=self.at_once)

    def _remember(self, kind: str, request: Any, answer: object) -> None:
        """Put it into lm-eval's own cache, where it keeps one."""
        hook: Any = getattr(self, "cache_hook", None)
        if hook is not None:
            hook.add_partial(kind, request.args, answer)


@cache
def register() -> type[BraidLM]:
    """Make `BraidLM` one of lm-eval's models, under the name `braid`.

    Returns:
        The class that it knows: `BraidLM`, and behind it lm-eval's `LM`.

    Raises:
        InputError: lm-eval is not installed.
    """
    try:
        interface: Any = importlib.import_module("lm_eval.api.model")
        registry: Any = importlib.import_module("lm_eval.api.registry")
    except ImportError as error:
        raise InputError(
            f"lm-eval cannot be imported ({error}); pip install 'braid-llm[eval]' brings it"
        ) from None
    made = type("BraidLM", (BraidLM, interface.LM), {"__doc__": BraidLM.__doc__, "__module__": __name__})
    return registry.register_model("braid")(made)


def _output_of(topology: Topology, output: str | None) -> str:
    if output is not None:
        if not topology.stream(output).is_output:
            raise InputError(f"{output} is an input; outputs are {', '.join(topology.output_names)}")
        return output
    heard = [name for name in topology.output_names if topology.streams[name].visibility == "external"]
    if len(heard) != 1 or not topology.input_names:
        raise InputError(
            f"tasks need an input and one stream that answers; external outputs are {', '.join(heard) or 'none'}: "
            "name one with output="
        )
    return heard[0]
