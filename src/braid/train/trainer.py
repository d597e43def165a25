"""The `transformers` Trainer, told what is ours: weights instead of counts, our optimisers, our folders.

A checkpoint is written in this order, so that whatever ends the run leaves the last complete one as it was:

    network ▶ optimiser ▶ states of chance ▶ trainer state ▶ the oldest is removed ▶ `complete`
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType, FullyShardedDataParallelPlugin
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed import DistError
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.utils.data import SequentialSampler
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from braid.errors import DataError, DivergedError, TrainingError
from braid.streams.topology import Topology
from braid.train.examples import Examples
from braid.train.folder import remove, sync, write_network
from braid.train.network import StreamNetwork
from braid.train.optimisers import optimiser_of
from braid.train.packing import Reading, pack
from braid.train.processes import are_on_cpu, num_processes
from braid.train.recipe import Recipe, Stage

__all__ = [
    "StreamTrainer",
    "arguments_of",
    "clear_cut_off",
    "is_lost_process",
    "last_checkpoint",
    "steps_of",
    "writing",
]

_COMPLETE = "complete"
"""A file in every checkpoint that was written to its end."""

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_STATE = "trainer_state.json"


class StreamTrainer(Trainer):
    """The Trainer of one stage.

    Args:
        network: What is trained; where a run goes on, with the weights of its last checkpoint.
        arguments: Of `arguments_of`.
        stage: What is asked for.
        examples: Its examples; they are used in their order.
        reading: Who reads whom.
        tokenizer: Of `transformers`, to be saved.
        topology: Of the streams, to be saved.
        on_log: Is given each line of the log.
    """

    def __init__(
        self,
        network: StreamNetwork,
        arguments: TrainingArguments,
        stage: Stage,
        examples: Examples,
        reading: Reading,
        tokenizer: Any,
        topology: Topology,
        on_log: Callable[[dict[str, float]], None],
    ) -> None:
        self.stage, self.topology, self.tokenizer = stage, topology, tokenizer
        super().__init__(
            model=network,
            args=arguments,
            train_dataset=examples,
            data_collator=partial(pack, reading=reading, order=stage.order),
            callbacks=[_Told(on_log)],
        )
        self.remove_callback(PrinterCallback)

    @property
    def network(self) -> StreamNetwork:
        """Without what processes wrap around it."""
        network = self.accelerator.unwrap_model(self.model)
        assert isinstance(network, StreamNetwork)
        return network

    def gathered_state(self) -> dict[str, Tensor]:
        """Weights of the whole network; all processes must ask, and the first one gets them."""
        state: dict[str, Tensor] = {}
        for name, each in self.network.state_dict().items():
            whole = each.full_tensor() if isinstance(each, DTensor) else each
            if self.args.should_save:
                state[name] = whole.cpu()  # where it is written from, whatever computes
        return state

    def create_accelerator_and_postprocess(self) -> None:
        """Have `accelerate` share the network between CPUs, too, where it would give each process a whole one."""
        super().create_accelerator_and_postprocess()
        plugin: Any = getattr(self.args, "fsdp_plugin_args", None)
        if plugin is not None and not self.is_fsdp_enabled:
            self.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(**plugin)
            self.accelerator.state.distributed_type = DistributedType.FSDP
            self.is_fsdp_enabled = True

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """The one that the stage asks for."""
        made: Any = self.optimizer
        if made is None:
            made = self.optimizer = optimiser_of(self.network, self.stage)
        return made

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """One batch; a loss that is not finite ends the run before it can reach a checkpoint."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not bool(torch.isfinite(loss)):
            raise _diverged(f"the loss of step {self.state.global_step + 1} is {loss.item()}")
        return loss

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The batches of a step."""
        try:
            return super().get_batch_samples(epoch_iterator, num_batches, device)
        except DataError as error:
            # From a worker it comes with the worker's traceback before its own words.
            raise type(error)(str(error).strip().rpartition(f"{type(error).__name__}: ")[2]) from error

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | None:
        """The summed totals of a step, over its batches and all processes."""
        if not batch_samples:
            return None
        own = sum(batch["total"] for batch in batch_samples)
        total = torch.tensor(own, dtype=self.network.weights_dtype, device=device)
        if self.args.world_size > 1:
            gathered: Any = self.accelerator.gather(total)
            total = gathered.sum()
        if not own and not bool(total):  # nobody else's counts either; a GPU is waited for in this case alone
            raise DataError(
                f"no answer of step {self.state.global_step + 1} counts, all that its examples ask has the weight 0; "
                "raise the stage's weights, or take a larger batch"
            )
        return total

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        """In order: examples are drawn by their place."""
        examples: Any = self.train_dataset
        return SequentialSampler(examples)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """A folder that can be loaded."""
        self._save(output_dir, self.gathered_state())

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        assert output_dir is not None
        assert state_dict is not None
        if not self.args.should_save:
            return
        for name, each in state_dict.items():
            if not bool(torch.isfinite(each).all()):
                raise _diverged(f"{name} is not finite at step {self.state.global_step}")
        write_network(Path(output_dir), self.network, self.tokenizer, self.topology, state_dict)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """A checkpoint, marked as complete when it is."""
        folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
        try:
            with writing(folder):
                super()._save_checkpoint(model, trial)
                self.accelerator.wait_for_everyone()  # each process writes its own state of chance
                if self.args.should_save:
                    sync(folder)
                    (folder / _COMPLETE).touch()
        except BaseException:
            if self.args.should_save:
                remove(folder)
            raise

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.is_fsdp_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        # Not by the Trainer, which writes the network once more, and knows one optimiser only.
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        scheduler: Any = self.lr_scheduler
        state = get_optimizer_state_dict(self.network, self._optimisers(), options=options)
        if self.args.should_save:
            torch.save(state, Path(output_dir) / "optimizer.pt")
            torch.save(scheduler.state_dict(), Path(output_dir) / "scheduler.pt")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        try:
            if not self.is_fsdp_enabled:
                super()._load_optimizer_and_scheduler(checkpoint)
                return
            state = torch.load(Path(checkpoint) / "optimizer.pt", weights_only=True)
            options = StateDictOptions(full_state_dict=True)
            set_optimizer_state_dict(self.network, self._optimisers(), state, options=options)
            scheduler: Any = self.lr_scheduler
            scheduler.load_state_dict(torch.load(Path(checkpoint) / "scheduler.pt", weights_only=True))
        except Exception as error:
            raise TrainingError(
                f"{checkpoint} cannot be gone on from ({error}); remove it to go on from what was before"
            ) from error

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Nothing: the network came with its weights, before processes shared it."""

    def _optimisers(self) -> tuple[torch.optim.Optimizer, ...]:
        wrapped: Any = self.optimizer
        optimiser = getattr(wrapped, "optimizer", wrapped)
        return getattr(optimiser, "parts", (optimiser,))


class _Told(TrainerCallback):
    """Passes the log on."""

    def __init__(self, on_log: Callable[[dict[str, float]], None]) -> None:
        self._on_log = on_log

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """A line of the log."""
        if logs is not None and state.is_world_process_zero:
            self._on_log({"step": state.global_step, **logs})


def arguments_of(recipe: Recipe, stage: Stage, folder: Path) -> TrainingArguments:
    """What the Trainer is told.

    Args:
        recipe, stage: What is asked for.
        folder: Of the stage's checkpoints.
    """
    decay = int(stage.steps * stage.decay)
    is_shared: Any = recipe.fsdp and num_processes() > 1
    arguments: Any = TrainingArguments(
        output_dir=str(folder),
        max_steps=stage.steps,
        per_device_train_batch_size=stage.batch,
        gradient_accumulation_steps=stage.accumulate,
        learning_rate=stage.learning_rate,
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": decay, "decay_type": "linear"},
        warmup_steps=min(stage.warmup, stage.steps - decay),
        max_grad_norm=stage.max_grad_norm,
        logging_steps=recipe.log_every,
        logging_nan_inf_filter=False,
        save_steps=recipe.save_every,
        save_total_limit=2,
        seed=recipe.seed,
        bf16=recipe.dtype == "bfloat16",
        report_to=list(recipe.trackers) or "none",
        remove_unused_columns=False,
        average_tokens_across_devices=True,
        disable_tqdm=True,
        use_cpu=are_on_cpu(),
        ddp_find_unused_parameters=False,
        label_names=[],
        use_cache=True,  # of the finished model, which keeps the setting; while it is trained nothing is cached
        dataloader_num_workers=recipe.workers,
        dataloader_pin_memory=torch.cuda.is_available(),
        fsdp=is_shared or None,
        fsdp_config={"version": 2, "state_dict_type": "FULL_STATE_DICT"} if is_shared else None,
    )
    if arguments.n_gpu > 1:
        # One process would spread each batch over all its GPUs by cutting tensors, which a packed batch does not bear.
        arguments._n_gpu = 1  # noqa: SLF001
    return arguments


@contextmanager
def writing(folder: Path) -> Generator[None]:
    """What goes wrong inside the block went wrong because something could not be written.

    Raises:
        TrainingError: With the reason.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:  # torch says RuntimeError when a disk is full
        if is_lost_process(error):
            raise
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TrainingError(f"cannot write {folder}: {why}") from error


def is_lost_process(error: Exception) -> bool:
    """Whether torch says that another process has ended; for most of these it has no class."""
    words = str(error)
    return isinstance(error, DistError) or "DataLoader worker" in words or "gloo" in words


def clear_cut_off(folder: Path) -> None:
    """Remove the checkpoints of a stage that were not written to their end."""
    for path in _checkpoints(folder):
        if not (path / _COMPLETE).is_file():
            remove(path)


def last_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint of a stage that is complete."""
    complete = [path for path in _checkpoints(folder) if (path / _COMPLETE).is_file()]
    return complete[-1] if complete else None


def steps_of(checkpoint: Path) -> int:
    """Steps that a checkpoint has behind it.

    Raises:
        TrainingError: It does not say.
    """
    try:
        return int(json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))["global_step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(
            f"{checkpoint} cannot be gone on from ({error}); remove it to go on from what was before"
        ) from error


def _checkpoints(folder: Path) -> list[Path]:
    """All that are there, by their steps."""
    found = [
        (int(match[1]), path) for path in folder.glob("*") if (match := _CHECKPOINT.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found)]


def _diverged(what: str) -> DivergedError:
    return DivergedError(
        f"{what}; the last checkpoint is intact and can be loaded: train into another folder with a lower "
        "learning_rate or max_grad_norm"
    )
