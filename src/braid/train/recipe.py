"""Recipes: all that decides what a training run becomes, in one YAML file.

    name: little
    topology:
      streams: {user: {direction: input}, thought: {direction: output}, output: {direction: output}}
      reads: {thought: [user]}
    examples: [{builder: stories, seed: 1}]
    tokenizer: {size: 1500}
    network: {settings: {hidden_size: 128, num_hidden_layers: 4}}
    stages: [{form: turns, steps: 1000}, {form: streams, steps: 2000}]

Paths in a recipe are relative to the recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from braid.data.build import ARRIVAL_MIX
from braid.data.builders.audit import FAULTS, UNSEEN_FAULTS
from braid.data.layout import ARRIVALS
from braid.data.sources import find_builder
from braid.data.tables import FORMATS
from braid.errors import BraidError, DataError, RecipeError, TopologyError
from braid.streams.presets import topology
from braid.streams.strict import Frozen, StrictModel, hint, problem, translated
from braid.streams.topology import Topology
from braid.streams.yaml_form import load_yaml

__all__ = ["Form", "Lora", "Network", "Recipe", "Source", "Stage", "TokenizerWish"]

Form = Literal["streams", "turns"]
"""`streams` trains rows of parallel streams; `turns` the same examples in one stream, as an ordinary model has them."""


_LIMITS = ("most_steps", "largest")
"""Fields of a source that leave examples out."""


class _RecipeModel(StrictModel):
    refusal: ClassVar[type[BraidError]] = RecipeError


class Source(_RecipeModel):
    """Where examples come from: a builder, or a file of scores or row tables.

    Args:
        builder: A builder of `braid data` that gives each example by its place.
        file: A `.scores.jsonl`, `.jsonl` or `.parquet`; used again and again in ever new order.
        share: Of the examples, beside the other sources' shares.
        seed, split: Of the builder.
        arrival: How input comes: `mixed`, or one way for all; row tables have theirs already.
        most_steps: Of a builder's examples only those whose solution has at most so many steps; all of them if None.
        largest: Of a builder's examples only those in which no number is larger; all of them if None.
        faults: Kinds of fault that `audit` plants, each as likely as it is often named; all of its split if none is.
    """

    builder: str | None = None
    file: Path | None = None
    share: float = Field(default=1.0, gt=0)
    seed: int = 0
    split: str = "train"
    arrival: str = ARRIVAL_MIX
    most_steps: int | None = Field(default=None, ge=0)
    largest: int | None = Field(default=None, ge=0)
    faults: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.builder is None) == (self.file is None):
            raise problem("a source of examples has either a builder or a file")
        for name in _LIMITS:
            if self.file is not None and getattr(self, name) is not None:
                raise problem(
                    "only a builder can leave examples out; build a file of the wanted ones", key=name
                )
        if self.builder is not None:
            _require_places(self.builder, self.split)
        if self.faults:
            _require_faults(self.builder, self.faults)
        if self.file is not None and not self.file.name.endswith(FORMATS):
            raise problem(f"{self.file} is neither .scores.jsonl, .jsonl nor .parquet", key="file")
        known = (ARRIVAL_MIX, *ARRIVALS)
        if self.arrival not in known:
            raise problem(f"there is no arrival {self.arrival!r}; {hint(self.arrival, known)}", key="arrival")
        return self

    @model_serializer(mode="wrap")
    def _told(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Say nothing of a choice that is not made, so that a run that was begun before there was one goes on."""
        told = cast("dict[str, Any]", handler(self))
        silent = [name for name in (*_LIMITS, "faults") if getattr(self, name) in (None, ())]
        return {name: value for name, value in told.items() if name not in silent}


def _require_faults(builder: str | None, faults: Sequence[str]) -> None:
    """Refuse kinds of fault that nobody plants."""
    if builder != "audit":
        raise problem("only the builder audit plants faults", key="faults")
    known = (*FAULTS, *UNSEEN_FAULTS)
    for kind in faults:
        if kind not in known:
            raise problem(f"there is no kind of fault {kind!r}; {hint(kind, known)}", key="faults")


def _require_places(builder: str, split: str) -> None:
    """Refuse a builder that cannot give the example at a place."""
    try:
        found = find_builder(builder)
    except DataError as error:
        raise problem(str(error), key="builder") from error
    if found.nth is None:
        raise problem(
            f"{builder} cannot give its examples by their place; build a file with `braid data build {builder}` and "
            "name it as `file`",
            key="builder",
        )
    if split not in found.splits:
        raise problem(f"{builder} has no split {split!r}; {hint(split, found.splits)}", key="split")


class TokenizerWish(_RecipeModel):
    """The tokenizer of a network from scratch, trained on the recipe's own examples, or one that exists.

    Args:
        file: A `tokenizer.json`; then the rest says nothing.
        size: Tokens at most.
        texts: Examples that it is trained on.
        words: Words that are to be whole; `stories` names the lexicon of the story generator.
        silence, end: Its tokens for silence and for the end of a turn.
    """

    file: Path | None = None
    size: int = Field(default=4096, ge=300)
    texts: int = Field(default=4000, ge=1)
    words: tuple[str, ...] | Literal["stories"] = ()
    silence: str = "<silence>"
    end: str = "<end>"


class Network(_RecipeModel):
    """The network: of a stock model, or from scratch.

    Args:
        base: Alias, folder or hub id of a stock model, or of one that was trained on the same streams.
        model_type: What `transformers` calls the architecture of one from scratch.
        settings: Of its configuration.
    """

    base: str | None = None
    model_type: str = "llama"
    settings: Frozen[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.base is not None and self.settings:
            raise problem("a stock model (`base`) has its settings already; leave them out", key="settings")
        return self


class Lora(_RecipeModel):
    """Low-rank adapters on a stock network, by `peft`.

    Args:
        rank, alpha, dropout: As `peft` has them.
        targets: Ends of the names of the modules that get one; `all-linear` is all but the head.
    """

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: tuple[str, ...] | str = "all-linear"


class Stage(_RecipeModel):
    """One leg of a run.

    Args:
        form: What the examples are trained as.
        steps: Optimiser steps.
        batch: Examples of a batch, in each process.
        accumulate: Batches of a step.
        optimizer: `adamw`, or `muon` for the matrices between the tables and `adamw` for all else.
        learning_rate: Peak.
        matrix_learning_rate: Peak for the matrices under `muon`; twice the other by default.
        stream_learning_rate: Peak for the stream embeddings and silence; five times the other by default.
        warmup: Steps until the peak.
        decay: Share of the steps, at the end, in which it falls to 0.
        weight_decay, beta2, max_grad_norm: As AdamW has them.
        order: Of the queries of an example.
        silence, probe_share, weights: What counts how much; see `braid.train.queries.Weighing`.
        examples: Where its examples come from, in place of the recipe's.
    """

    form: Form = "streams"
    steps: int = Field(ge=1)
    batch: int = Field(default=32, ge=1)
    accumulate: int = Field(default=1, ge=1)
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = Field(default=2e-3, gt=0)
    matrix_learning_rate: float | None = Field(default=None, gt=0)
    stream_learning_rate: float | None = Field(default=None, gt=0)
    warmup: int = Field(default=100, ge=0)
    decay: float = Field(default=0.8, ge=0, le=1)
    weight_decay: float = Field(default=0.01, ge=0)
    beta2: float = Field(default=0.98, gt=0, lt=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    order: Literal["interleaved", "sequential"] = "interleaved"
    silence: float = Field(default=0.3, ge=0)
    probe_share: float = Field(default=0.3, gt=0, le=1)
    weights: Frozen[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    examples: tuple[Source, ...] = ()

    @model_serializer(mode="wrap")
    def _told(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Say nothing of examples that are the recipe's, so that a run from before there were others goes on."""
        told = cast("dict[str, Any]", handler(self))
        return told if self.examples else {name: value for name, value in told.items() if name != "examples"}

    @property
    def num_examples(self) -> int:
        """Of each process."""
        return self.steps * self.batch * self.accumulate


class Recipe(_RecipeModel):
    """A training run.

    Args:
        name: Of the model.
        seed: Of the weights, and of all that is drawn.
        topology: Name of a preset, or a topology.
        examples: Where they come from.
        tokenizer: Of a network from scratch.
        network: What is trained.
        lora: Adapters instead of all weights.
        stages: One after another.
        save_every: Steps from one checkpoint to the next.
        log_every: Steps from one line of the log to the next.
        trackers: Of `transformers`, such as `tensorboard` or `wandb`.
        workers: Processes that lay examples out while the network computes; 0 lays them out in between.
        fsdp: Whether processes share the network (FSDP2) instead of each having all of it.
        dtype: What is computed in. The weights are of the same, but float32 under `bfloat16`.
        folder: Where the recipe is; paths are relative to it.
    """

    name: str = Field(pattern=r"^[\w.-]+$")
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    topology: Topology
    examples: tuple[Source, ...] = Field(min_length=1)
    tokenizer: TokenizerWish = TokenizerWish()
    network: Network = Network()
    lora: Lora | None = None
    stages: tuple[Stage, ...] = Field(min_length=1)
    save_every: int = Field(default=500, ge=1)
    log_every: int = Field(default=50, ge=1)
    trackers: tuple[str, ...] = ()
    workers: int = Field(default=0, ge=0)
    fsdp: bool = False
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    folder: Path = Field(default=Path(), exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _named_topology(cls, data: object) -> object:
        if isinstance(data, dict):
            told = cast("dict[str, Any]", data)
            if isinstance(told.get("topology"), str):
                return {**told, "topology": topology(told["topology"])}
        return cast("object", data)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.topology.decoding != "rows":
            raise problem("training makes a model of rows; leave `decoding` out", key="topology.decoding")
        if self.topology.silence != "dropped":
            raise problem(
                "a model is trained with silence that takes no slot; leave it out", key="topology.silence"
            )
        if self.lora is not None and self.network.base is None:
            raise problem("adapters need a stock network; name one as network.base", key="lora")
        for place, stage in enumerate(self.stages):
            for name in stage.weights:
                if name not in self.topology.streams:
                    raise problem(
                        f"there is no stream {name!r}; {hint(name, self.topology.streams)}",
                        key=f"stages[{place}].weights",
                    )
            if stage.form == "streams" and not any(
                stage.weights.get(name, float(spec.is_output)) for name, spec in self.topology.streams.items()
            ):
                raise problem(
                    "all outputs count 0, so nothing is learned; leave one out, or give it more than 0",
                    key=f"stages[{place}].weights",
                )
        return self

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """A recipe from a file.

        Raises:
            RecipeError: It cannot be read, or asks for what cannot be.
        """
        path = Path(path)
        try:
            told = load_yaml(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"cannot read {path}: {error}") from error
        except TopologyError as error:
            raise RecipeError(f"{path}: {error}") from error
        try:
            return cls.model_validate({**told, "folder": path.parent})
        except ValidationError as error:
            raise RecipeError(f"{path}: {translated(error, RecipeError)}") from error

    def as_baseline(self) -> Self:
        """The same run with every stage in turns: the single-stream baseline on the same examples.

        Returns:
            A recipe that can be run in the same folder; what both have in common is trained once.
        """
        stages = tuple(stage.model_copy(update={"form": "turns"}) for stage in self.stages)
        return self.model_copy(update={"stages": stages})

    def at(self, path: Path) -> Path:
        """Where a path that the recipe names is."""
        return self.folder / path

    @property
    def tokenizer_file(self) -> Path | None:
        """Where the `tokenizer.json` is that the recipe names; None if it names none, or a stock model has its own."""
        if self.tokenizer.file is None or self.network.base is not None:
            return None
        path = self.at(self.tokenizer.file)
        return path / "tokenizer.json" if path.is_dir() else path

    @property
    def base(self) -> str:
        """The stock network: a folder or file beside the recipe, or else what `braid.load` takes."""
        assert self.network.base is not None
        beside = self.folder / self.network.base
        return str(beside) if beside.exists() else self.network.base
