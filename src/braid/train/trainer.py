"""The `transformers` Trainer, told what is ours: weights instead of counts, our optimisers, our folders."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import SequentialSampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from braid.errors import DivergedError
from braid.streams.topology import Topology
from braid.train.examples import Examples
from braid.train.folder import load_weights, remove, write_network
from braid.train.network import StreamNetwork
from braid.train.optimisers import optimiser_of
from braid.train.packing import Reading, pack
from braid.train.recipe import Recipe, Stage

__all__ = ["COMPLETE", "StreamTrainer", "arguments_of", "last_checkpoint"]

COMPLETE = "complete"
"""A file in every checkpoint that was written to its end."""

_PREFIX = "checkpoint-"


class StreamTrainer(Trainer):
    """The Trainer of one stage.

    Args:
        network: What is trained.
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
            data_collator=lambda drawn: pack(drawn, reading, order=stage.order),
            callbacks=[_Told(on_log)],
        )
        self.remove_callback(PrinterCallback)

    @property
    def network(self) -> StreamNetwork:
        """Without what processes wrap around it."""
        network = self.accelerator.unwrap_model(self.model)
        assert isinstance(network, StreamNetwork)
        return network

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """The one that the stage asks for."""
        if self.optimizer is None:
            self.optimizer = optimiser_of(self.network, self.stage)
        return self.optimizer

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """One batch; a loss that is not finite ends the run before it can reach a checkpoint."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not bool(torch.isfinite(loss)):
            raise DivergedError(
                f"the loss of step {self.state.global_step + 1} is {loss.item()}; the last checkpoint is intact: go on "
                "from it with a lower learning_rate or max_grad_norm"
            )
        return loss

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | None:
        """The summed weights of a step, over its batches and all processes."""
        if not batch_samples:
            return None
        total = torch.stack([batch["weights"].sum() for batch in batch_samples]).sum().to(device)
        if self.args.world_size > 1:
            total = self.accelerator.gather(total).sum()
        return total

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        """In order: examples are drawn by their place."""
        return SequentialSampler(self.train_dataset)  # type: ignore[arg-type]

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """A folder that can be loaded."""
        if not self.args.should_save:
            return
        network = self.network
        for name, each in (state_dict or network.state_dict()).items():
            if not bool(torch.isfinite(each).all()):
                raise DivergedError(
                    f"{name} is not finite at step {self.state.global_step}; the last checkpoint is intact: go on from "
                    "it with a lower learning_rate or max_grad_norm"
                )
        write_network(Path(output_dir or self.args.output_dir), network, self.tokenizer, self.topology, state_dict)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """A checkpoint, marked as complete when it is."""
        folder = Path(self.args.output_dir) / f"{_PREFIX}{self.state.global_step}"
        try:
            super()._save_checkpoint(model, trial)
            if self.args.should_save:
                with (folder / COMPLETE).open("w") as file:
                    file.flush()
                    os.fsync(file.fileno())
        except BaseException:
            if self.args.should_save:
                remove(folder)
            raise

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            load_weights(Path(resume_from_checkpoint), self.network)


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
    warmup = min(stage.warmup, stage.steps - decay)
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=stage.steps,
        per_device_train_batch_size=stage.batch,
        gradient_accumulation_steps=stage.accumulate,
        learning_rate=stage.learning_rate,
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": decay, "decay_type": "linear"},
        warmup_steps=warmup,
        max_grad_norm=stage.max_grad_norm,
        logging_steps=recipe.log_every,
        logging_nan_inf_filter=False,
        save_steps=recipe.save_every,
        save_total_limit=2,
        seed=recipe.seed,
        report_to=list(recipe.trackers) or "none",
        remove_unused_columns=False,
        average_tokens_across_devices=True,
        disable_tqdm=True,
        label_names=[],
        dataloader_pin_memory=torch.cuda.is_available(),
        fsdp="full_shard" if recipe.fsdp else None,
        fsdp_config={"fsdp_version": 2, "state_dict_type": "FULL_STATE_DICT"} if recipe.fsdp else None,
    )


def last_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint of a stage that is complete; those that were cut off are removed."""
    found = sorted(
        (each for each in folder.glob(f"{_PREFIX}*") if each.is_dir()),
        key=lambda each: int(each.name.removeprefix(_PREFIX)),
    )
    for each in found:
        if not (each / COMPLETE).is_file():
            remove(each)
    complete = [each for each in found if (each / COMPLETE).is_file()]
    return complete[-1] if complete else None


def steps_of(checkpoint: Path) -> int:
    """Steps that a checkpoint has behind it."""
    return int(json.loads((checkpoint / "trainer_state.json").read_text())["global_step"])
