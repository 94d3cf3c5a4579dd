"""Training of the lab model: masked diffusion on generated examples, in minutes, resumable at any kill."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dapd.decoding.graphs import capture
from dapd.errors import DapdError
from dapd.lab.checkpoint import export, network_config, start_from
from dapd.lab.data import PoolMaker, Rows, held_out
from dapd.lab.loss import Noisy, add_noise, weighted_loss
from dapd.lab.settings import TrainSettings
from dapd.lab.tokenizer import LabTokenizer
from dapd.models.devices import pick_device
from dapd.models.transformer import Transformer, unfused

STATE, LOG, RECORD = "state.pt", "training.jsonl", "training.json"

PROBE_ROWS = 40
"""Held-out rows a task for the loss that is logged on the way."""

SYNC_EVERY = 8
"""Steps after which the clock waits for the GPU, which would otherwise lag behind the time that is counted."""

FINAL_LR = 0.02
"""Learning rate at the end, as a part of the highest."""

Report = Callable[[dict[str, Any]], None]
"""Called with every record of the training log."""


@dataclass
class State:
    """Everything that changes while training; what is saved is what resumes."""

    network: Transformer
    average: list[Tensor]
    """Moving averages of the parameters, in their order."""
    optimizer: torch.optim.AdamW
    step: int = 0
    seconds: float = 0.0
    """Time spent in steps, over all the runs it took."""

    def save(self, folder: Path) -> None:
        """Write the state in one motion: a kill leaves the old one or the new one, never half of one."""
        content = {
            "network": self.network.state_dict(),
            "average": self.average,
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
        }
        torch.save(content, folder / f"{STATE}.tmp")
        os.replace(folder / f"{STATE}.tmp", folder / STATE)

    def load(self, folder: Path) -> None:
        content = torch.load(folder / STATE, map_location=self.network.device, weights_only=True)
        if content["network"].keys() != self.network.state_dict().keys():
            raise DapdError(f"{folder / STATE} was written by another version of dapd: start the training again")
        self.network.load_state_dict(content["network"])
        self.average = content["average"]
        self.optimizer.load_state_dict(content["optimizer"])
        self.step, self.seconds = content["step"], content["seconds"]


def initialise(network: Transformer, seed: int) -> None:
    """Variance-keeping normal weights; what is added to the residual stream is smaller with depth.

    Embeddings have unit size. With small ones (0.02, as is common for language models) a first layer drowns the
    identity of the tokens, and copying, which most tasks need, is learned many times later.
    """
    generator = torch.Generator(network.device).manual_seed(seed)
    for name, weight in unfused(network.config, dict(network.named_parameters())).items():
        if "norm" in name:
            nn.init.ones_(weight)
        elif name == "embed.weight":
            nn.init.normal_(weight, generator=generator)
        else:
            depth = 2 * network.n_layers if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
            nn.init.normal_(weight, std=(weight.shape[1] * depth) ** -0.5, generator=generator)


def new_state(settings: TrainSettings, tokenizer: LabTokenizer, device: torch.device) -> State:
    network = Transformer(network_config(settings, tokenizer)).to(device)
    initialise(network, settings.seed)
    if settings.start:
        start_from(network, tokenizer, Path(settings.start))
    matrices = [p for p in network.parameters() if p.ndim > 1]
    vectors = [p for p in network.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.98), fused=device.type == "cuda")
    return State(network, [p.detach().clone() for p in network.parameters()], optimizer)


def rate_at(settings: TrainSettings, step: int, progress: float) -> float:
    """Learning rate: a linear rise, then half a cosine along the progress."""
    rise = min(1.0, (step + 1) / settings.warmup) if settings.warmup else 1.0
    fall = FINAL_LR + (1 - FINAL_LR) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return settings.lr * rise * fall


class Batches:
    """Rows of every length for each step, in the proportion in which the first chunk of the pool holds them."""

    def __init__(self, sample: list[Rows], tokens: int, device: torch.device) -> None:
        self.pool = [rows.to(device) for rows in sample]
        columns = sum(rows.tokens.numel() for rows in sample)
        self.sizes = [_batch_size(tokens * len(rows) / columns) for rows in sample]
        self.tokens = sum(size * rows.tokens.shape[1] for size, rows in zip(self.sizes, sample, strict=True))

    def fill(self, pool: list[Rows]) -> None:
        """Put the whole pool in the place of its first chunk."""
        self.pool = [rows.to(old.tokens.device) for rows, old in zip(pool, self.pool, strict=True)]

    def draw(self, generator: torch.Generator) -> Iterator[Rows]:
        for size, rows in zip(self.sizes, self.pool, strict=True):
            if size:
                index = torch.randint(len(rows), (size,), device=rows.tokens.device, generator=generator)
                yield Rows(*(tensor[index] for tensor in vars(rows).values()))


def _batch_size(size: float) -> int:
    """A whole number of rows; large ones are multiples of eight, for the matrix units."""
    return math.ceil(size) if size < 8 else round(size / 8) * 8


def backward(network: Transformer, batch: list[Noisy]) -> Tensor:
    """Add the gradients of a batch; the loss comes back."""
    total = torch.zeros((), device=network.device)
    for noisy in batch:
        loss = weighted_loss(network, noisy).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total


class Replay:
    """Forward and backward of a batch of fixed shapes as one CUDA graph."""

    def __init__(self, network: Transformer, batch: list[Noisy]) -> None:
        self.batch = [Noisy(*(tensor.clone() for tensor in vars(noisy).values())) for noisy in batch]

        def work() -> Tensor:
            # The gradients must be made inside of the graph: it would add to where it found them.
            network.zero_grad(set_to_none=True)
            return backward(network, self.batch)

        self.replay = capture(work, warmups=3)

    def __call__(self, batch: list[Noisy]) -> Tensor:
        for mine, noisy in zip(self.batch, batch, strict=True):
            for own, new in zip(vars(mine).values(), vars(noisy).values(), strict=True):
                own.copy_(new)
        return self.replay().clone()


class Trainer:
    """One training run in a folder of its own."""

    def __init__(self, settings: TrainSettings, folder: Path, report: Report, started: float) -> None:
        self.settings, self.folder, self.report, self.started = settings, folder, report, started
        maker = PoolMaker(settings)
        self.device = pick_device(settings.device)
        self.tokenizer = LabTokenizer.build()
        self.state = new_state(settings, self.tokenizer, self.device)
        if (folder / STATE).is_file():
            self.state.load(folder)
        self.probe = [
            rows.to(self.device) for rows in held_out(settings, PROBE_ROWS * len(settings.tasks)) if len(rows)
        ]
        self._keep_log()
        # The compiler works while other processes still make the pool.
        self.batches = Batches(maker.sample(), settings.tokens, self.device)
        if settings.compile:
            self._compile()
        self.replay: Replay | None = None
        if settings.capture and self.device.type == "cuda":
            self._capture()
        self.batches.fill(maker.result())
        setup = time.monotonic() - started
        self.budget = max(1.0, 60 * settings.minutes - settings.reserve - setup) if settings.minutes else math.inf
        n = sum(p.numel() for p in self.state.network.parameters())
        rows = {str(r.tokens.shape[1]): len(r) for r in self.batches.pool}
        self.note(event="start", parameters=n, setup=round(setup, 1), rows=rows, batch=self.batches.sizes)

    def note(self, **record: Any) -> None:
        record = {"step": self.state.step, **record}
        with (self.folder / LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(record) + "\n")
        self.report(record)

    def _keep_log(self) -> None:
        """Drop what was logged after the state that this run goes on from: those steps are done again."""
        path = self.folder / LOG
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        kept = [line for line in lines if _step_of(line) <= self.state.step] if self.state.step else []
        path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def _compile(self) -> None:
        """Compile a layer, once for each row length: all layers share the code, which keeps this short.

        Every batch shape is tried here, so that no step of the run waits for the compiler.
        """
        layers = list(self.state.network.layers)
        for layer in layers:
            layer.compile(dynamic=False)
        try:
            for rows in self.batches.draw(self._generator(0)):
                self._loss_of(rows, self._generator(0)).sum().backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # any failure of the compiler: training is still possible, only slower
            for layer in layers:
                layer._compiled_call_impl = None
            self.note(event="not compiled", reason=f"{type(error).__name__}: {error}"[:300])
        self.state.optimizer.zero_grad(set_to_none=True)

    def _capture(self) -> None:
        """Record forward and backward of a step; every step has the same shapes."""
        try:
            self.replay = Replay(self.state.network, self._noisy(list(self.batches.draw(self._generator(0))), 0))
            self.note(event="captured")
        except RuntimeError as error:
            self.note(event="not captured", reason=str(error)[:300])

    def _generator(self, step: int) -> torch.Generator:
        """Randomness of one step: it depends on the seed and the step alone, so a resumed run repeats nothing."""
        return torch.Generator(self.device).manual_seed(self.settings.seed * 1_000_003 + step)

    def _noisy(self, batch: list[Rows], step: int) -> list[Noisy]:
        """A batch with its masks; weights are divided by what the rows of the whole batch weigh together."""
        generator = self._generator(step)
        unit = torch.stack([rows.answer.float().sqrt().sum() for rows in batch]).sum()
        masked = [add_noise(rows, self.tokenizer.mask_id, self.settings.full_masked, generator) for rows in batch]
        return [dataclasses.replace(noisy, weight=noisy.weight / unit) for noisy in masked]

    def _loss_of(self, rows: Rows, generator: torch.Generator) -> Float[Tensor, " b"]:
        noisy = add_noise(rows, self.tokenizer.mask_id, self.settings.full_masked, generator)
        return weighted_loss(self.state.network, noisy)

    @property
    def progress(self) -> float:
        return max(self.state.step / self.settings.steps, self.state.seconds / self.budget)

    def run(self) -> None:
        """Step until the steps or the time are used up."""
        before, began, first = self.state.seconds, time.monotonic(), self.state.step
        mark, marked_step = began, first
        while self.progress < 1:
            loss = self.step()
            if self.device.type == "cuda" and self.state.step % SYNC_EVERY == 0:
                torch.cuda.synchronize()
            self.state.seconds = before + time.monotonic() - began
            done = self.state.step
            if done % self.settings.log_every == 0:
                value, now = float(loss), time.monotonic()
                speed = (done - marked_step) * self.batches.tokens / max(now - mark, 1e-9)
                lr = self.state.optimizer.param_groups[0]["lr"]
                self.note(
                    loss=round(value, 5), lr=round(lr, 7), tokens_per_s=round(speed), progress=round(self.progress, 4)
                )
                mark, marked_step = time.monotonic(), done
            if done % self.settings.probe_every == 0:
                self.note(event="probe", held_out=self.probe_loss())
            if done % self.settings.save_every == 0:
                self.state.save(self.folder)
        if self.state.step > first:
            self.state.save(self.folder)

    def step(self) -> Tensor:
        """One update of the weights and of their average."""
        state = self.state
        for group in state.optimizer.param_groups:
            group["lr"] = rate_at(self.settings, state.step, self.progress)
        # Draws of rows and of masks have streams of their own: odd and even seeds.
        rows = list(self.batches.draw(self._generator(2 * state.step + 1)))
        batch = self._noisy(rows, 2 * state.step)
        if self.replay is not None:
            total = self.replay(batch)
        else:
            state.optimizer.zero_grad(set_to_none=True)
            total = backward(state.network, batch)
        parameters = list(state.network.parameters())
        nn.utils.clip_grad_norm_(parameters, self.settings.clip)
        state.optimizer.step()
        state.step += 1
        decay = min(self.settings.ema, (1 + state.step) / (10 + state.step))
        with torch.no_grad():
            torch._foreach_lerp_(state.average, [p.detach() for p in parameters], 1 - decay)
        return total

    @torch.no_grad()
    def probe_loss(self) -> dict[str, float]:
        """The loss per answer token on held-out prompts, by task, always under the same masks."""
        names = self.settings.tasks
        sums, counts = torch.zeros(len(names)), torch.zeros(len(names))
        for rows in self.probe:
            with torch.compiler.set_stance("force_eager"):  # these shapes are not worth compiling
                loss = self._loss_of(rows, self._generator(0))
            loss = (loss / rows.answer.float().sqrt()).cpu()
            sums.index_add_(0, rows.task.long().cpu(), loss)
            counts.index_add_(0, rows.task.long().cpu(), torch.ones(len(rows)))
        return {name: round(float(s / c), 5) for name, s, c in zip(names, sums, counts, strict=True) if c > 0}

    def export(self, folder: Path) -> None:
        """The averaged weights as a checkpoint, with the settings and the log of the run."""
        names = [name for name, _ in self.state.network.named_parameters()]
        export(folder, self.settings, dict(zip(names, self.state.average, strict=True)), self.tokenizer)
        (folder / LOG).write_bytes((self.folder / LOG).read_bytes())

    def record(self) -> dict[str, Any]:
        """What to keep beside the weights: the settings, where and how long it ran."""
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None
        return {
            "settings": dataclasses.asdict(self.settings),
            "steps": self.state.step,
            "tokens": self.state.step * self.batches.tokens,
            "seconds": round(self.state.seconds, 1),
            "parameters": sum(p.numel() for p in self.state.network.parameters()),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": gpu or "cpu",
            **self._earlier(),
        }

    def _earlier(self) -> dict[str, Any]:
        """The record of the checkpoint that this run started from."""
        path = Path(self.settings.start) / RECORD
        return {"started_from": json.loads(path.read_text(encoding="utf-8"))} if self.settings.start else {}


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (json.JSONDecodeError, KeyError, TypeError, ValueError):
        return 2**63  # a line cut short by a kill
