"""Training of the lab model: masked diffusion on generated examples, in minutes. A killed run can be resumed."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dapd.errors import DapdError, first_line
from dapd.io.files import replacing, write_bytes, write_text, writing
from dapd.kernels.cuda_graph import capture
from dapd.lab.checkpoint import export, network_config, start_from
from dapd.lab.data import PoolMaker, Rows, held_out, typical
from dapd.lab.loss import Entropy, Noisy, add_noise, cross_entropy, losses
from dapd.lab.optimizer import Optimizer
from dapd.lab.settings import TrainSettings
from dapd.lab.tokenizer import LabTokenizer
from dapd.models.devices import pick_device
from dapd.models.transformer import Transformer, unfused

STATE, LOG, RECORD = "state.pt", "training.jsonl", "training.json"

PROBE_ROWS = 40
"""Held-out rows per task for the loss that is logged during training."""

SYNC_EVERY = 8
"""Steps between two waits for the GPU, which would otherwise lag behind the time that is counted."""

FINAL_LR = 0.02
"""Learning rate at the end, as a fraction of the highest."""

Report = Callable[[dict[str, Any]], None]
"""Called with every record of the training log."""


@dataclass
class State:
    """Everything that changes during training. All of it is saved, and a resumed run starts from it."""

    network: Transformer
    weights: dict[str, Tensor]
    """The trained weights by name, in fp32; where the network computes in another dtype, it holds a copy of them."""
    average: list[Tensor]
    """Moving averages of the weights, in the order of `weights`."""
    optimizer: Optimizer
    step: int = 0
    seconds: float = 0.0
    """Time spent in steps, summed over all runs of this training."""

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the trained weights into the network where it holds them in another dtype."""
        if self.network.dtype != torch.float32:
            own = dict(self.network.named_parameters())
            torch._foreach_copy_([own[name] for name in self.weights], list(self.weights.values()))

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """Move the averages towards the weights."""
        torch._foreach_lerp_(self.average, list(self.weights.values()), 1 - decay)

    def gradients(self) -> dict[str, Tensor]:
        """The network's gradients in fp32, by name."""
        grads = {name: p.grad for name, p in self.network.named_parameters()}
        return {name: grad.float() for name, grad in grads.items() if grad is not None}

    def save(self, folder: Path) -> None:
        """Write the state atomically: after a kill the file holds the old state or the new one, never half of one."""
        content = {
            "weights": self.weights,
            "average": self.average,
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
        }
        with replacing(folder / STATE) as draft:
            torch.save(content, draft)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Go back to a saved state."""
        path = folder / STATE
        try:
            content = torch.load(path, map_location=self.network.device, weights_only=True)
        except Exception as error:  # torch has no common class for the errors of a damaged file
            raise DapdError(f"{path} is damaged ({first_line(error)}): delete it to train from the start") from None
        if content.get("weights", {}).keys() != self.weights.keys():
            raise DapdError(f"{path} was written by another version of dapd: start the training again")
        for mine, kept in zip(self.weights.values(), content["weights"].values(), strict=True):
            mine.copy_(kept)
        self.average = content["average"]
        self.optimizer.load_state_dict(content["optimizer"])
        self.step = content["step"]
        self.seconds = content["seconds"]
        self.publish()


def initialise(network: Transformer, seed: int) -> None:
    """Draw normal weights that keep the variance. Those that write to the residual stream get smaller with the depth of
    the network.

    Embeddings have unit size. With small ones (0.02, as is common for language models) the first layer drowns out the
    identity of the tokens, and copying, which most tasks need, takes many times longer to learn.
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
    """A network with random weights, or with those of an earlier checkpoint, and the optimizer that trains it."""
    network = Transformer(network_config(settings, tokenizer)).to(device)
    initialise(network, settings.seed)
    if settings.start:
        start_from(network, tokenizer, Path(settings.start))
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(settings.trained == "all" or _in_attention(name))
    half = settings.precision == "bfloat16" or (settings.precision == "auto" and device.type == "cuda")
    learning = {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}
    weights = {name: p.clone() if half else p for name, p in learning.items()}
    network.to(torch.bfloat16 if half else torch.float32)
    optimizer = Optimizer(network.config, weights, muon=settings.optimizer == "muon", decay=settings.weight_decay)
    return State(network, weights, [weight.clone() for weight in weights.values()], optimizer)


def _in_attention(name: str) -> bool:
    """Whether a weight of the network belongs to the attention of a layer."""
    return any(part in name for part in ("attn_norm", "qkv_proj", "o_proj"))


@torch.no_grad()
def clip(gradients: dict[str, Tensor], most: float) -> None:
    """Scale all gradients together to a norm of at most `most`, in place and without waiting for a GPU."""
    parts = list(gradients.values())
    length = torch.stack(torch._foreach_norm(parts)).norm()
    torch._foreach_mul_(parts, (most / (length + 1e-6)).clamp_max(1.0))


def rate_at(settings: TrainSettings, step: int, progress: float) -> float:
    """The learning rate of a step: a linear warm-up times half a cosine along the progress, which goes from 0 to 1."""
    rise = min(1.0, (step + 1) / settings.warmup) if settings.warmup else 1.0
    fall = FINAL_LR + (1 - FINAL_LR) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return settings.lr * rise * fall


class Batches:
    """Draws a batch of every row length for each step, in the proportions that the lengths have in a sample of rows."""

    def __init__(self, sample: list[Rows], tokens: int, full_masked: float, device: torch.device) -> None:
        self.pool = [rows.to(device) for rows in sample]
        columns = sum(rows.tokens.numel() for rows in sample)
        self.sizes = [_batch_size(tokens * len(rows) / columns) for rows in sample]
        self.tokens = sum(size * rows.tokens.shape[1] for size, rows in zip(self.sizes, sample, strict=True))
        self.most = [_most_masks(rows, size, full_masked) for rows, size in zip(sample, self.sizes, strict=True)]
        """Largest number of masks to predict in a batch, for each length."""

    def fill(self, pool: list[Rows]) -> None:
        """Replace the sample by the pool, from which batches are then drawn."""
        self.pool = [rows.to(old.tokens.device) for rows, old in zip(pool, self.pool, strict=True)]

    def draw(self, generator: torch.Generator) -> Iterator[tuple[Rows, int]]:
        """A batch of each length that occurs, with the largest number of masks to predict in it."""
        for size, rows, most in zip(self.sizes, self.pool, self.most, strict=True):
            if size and len(rows):
                index = torch.randint(len(rows), (size,), device=rows.tokens.device, generator=generator)
                yield Rows(*(tensor[index] for tensor in vars(rows).values())), most


def _batch_size(size: float) -> int:
    """A whole number of rows; large ones are multiples of eight, for the matrix units."""
    return math.ceil(size) if size < 8 else round(size / 8) * 8


def _most_masks(rows: Rows, size: int, full_masked: float) -> int:
    """A number of masks that hardly any batch of `size` such rows exceeds: a multiple of 64 where possible."""
    if not size:
        return 0
    length = rows.tokens.shape[1]
    expected = size * (length - float(rows.start.float().mean())) * (0.5 + 0.5 * full_masked)
    # Four standard deviations, if the masks of a row deviate by two thirds of their number.
    return min(size * length, 64 * math.ceil(expected * (1 + 2.6 / math.sqrt(size)) / 64))


def backward(network: Transformer, batch: list[Noisy], entropy: Entropy, autocast: bool) -> Tensor:
    """Accumulate the gradients of a batch and return its loss."""
    total = torch.zeros((), device=network.device)
    for noisy in batch:
        loss = losses(network, noisy, entropy, autocast=autocast).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total


class Replay:
    """Forward and backward of a batch of fixed shapes as one CUDA graph."""

    def __init__(self, network: Transformer, batch: list[Noisy], entropy: Entropy, autocast: bool) -> None:
        self.batch = [Noisy(*(tensor.clone() for tensor in vars(noisy).values())) for noisy in batch]

        def work() -> Tensor:
            # Gradients must be allocated inside the graph: a replay would otherwise add to those of the step before.
            network.zero_grad(set_to_none=True)
            return backward(network, self.batch, entropy, autocast)

        self.replay = capture(work, warmups=3)

    def __call__(self, batch: list[Noisy]) -> Tensor:
        for mine, noisy in zip(self.batch, batch, strict=True):
            for own, new in zip(vars(mine).values(), vars(noisy).values(), strict=True):
                own.copy_(new)
        return self.replay().clone()


class Trainer:
    """One training run in a folder of its own."""

    def __init__(self, settings: TrainSettings, folder: Path, report: Report, started: float) -> None:
        self.settings = settings
        self.autocast = settings.precision == "autocast"
        self.folder = folder
        self.report = report
        self.started = started
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
        self.batches = Batches(typical(settings), settings.tokens, settings.full_masked, self.device)
        self.entropy: Entropy = cross_entropy
        if settings.compile:
            self._compile()
        self.replay: Replay | None = None
        if settings.capture and self.device.type == "cuda":
            self._capture()
        self.batches.fill(maker.result())
        setup = time.monotonic() - started
        self.budget = max(1.0, 60 * settings.minutes - settings.reserve - setup) if settings.minutes else math.inf
        n = sum(weight.numel() for weight in self.state.network.parameters())
        rows = {str(r.tokens.shape[1]): len(r) for r in self.batches.pool}
        gpu = round(torch.cuda.max_memory_reserved() / 2**30, 1) if self.device.type == "cuda" else 0.0
        self.note(
            event="start",
            parameters=n,
            setup=round(setup, 1),
            rows=rows,
            batch=self.batches.sizes,
            masks=self.batches.most,
            gpu_gib=gpu,
        )

    def note(self, **record: Any) -> None:
        record = {"step": self.state.step, **record}
        path = self.folder / LOG
        with writing(path), path.open("a", encoding="utf-8") as log:
            log.write(json.dumps(record) + "\n")
        self.report(record)

    def _keep_log(self) -> None:
        """Drop the records logged after the state that this run resumes from, because those steps are run again."""
        path = self.folder / LOG
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        kept = [line for line in lines if _step_of(line) <= self.state.step] if self.state.step else []
        write_text(path, "".join(f"{line}\n" for line in kept))

    def _compile(self) -> None:
        """Compile a layer, once for each row length: all layers share the code, which keeps this short.

        Every batch shape is tried here, so that no step of the run waits for the compiler.
        """
        network = self.state.network
        layers = list(network.layers)
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 4 * len(self.batches.sizes))
        for layer in layers:
            layer.compile(dynamic=False)
        self.entropy = torch.compile(cross_entropy, dynamic=False)
        try:
            backward(network, self._noisy(0), self.entropy, self.autocast)
        except Exception as error:  # any failure of the compiler: training is still possible, only slower
            for layer in layers:
                layer._compiled_call_impl = None
            self.entropy = cross_entropy
            self.note(event="not compiled", reason=f"{type(error).__name__}: {error}"[:300])
        network.zero_grad(set_to_none=True)

    def _capture(self) -> None:
        """Record forward and backward of a step as a CUDA graph; every step has the same shapes."""
        try:
            self.replay = Replay(self.state.network, self._noisy(0), self.entropy, self.autocast)
            self.note(event="captured")
        except RuntimeError as error:
            self.note(event="not captured", reason=str(error)[:300])

    def _generator(self, number: int) -> torch.Generator:
        """A generator set by the seed and `number` alone: a resumed run draws what an uninterrupted one would draw."""
        return torch.Generator(self.device).manual_seed(self.settings.seed * 1_000_003 + number)

    def _noisy(self, step: int) -> list[Noisy]:
        """The masked batch of a step. The loss weights are normalised over the rows of all lengths together."""
        # Rows and masks are drawn from separate streams, with odd and even numbers.
        drawn = list(self.batches.draw(self._generator(2 * step + 1)))
        generator = self._generator(2 * step)
        unit = torch.stack([rows.answer.float().sqrt().sum() for rows, _ in drawn]).sum()
        mask_id = self.tokenizer.mask_id
        full = self.settings.full_masked
        masked = [add_noise(rows, mask_id, full, generator, most) for rows, most in drawn]
        return [dataclasses.replace(noisy, weight=noisy.weight / unit) for noisy in masked]

    @property
    def progress(self) -> float:
        return max(self.state.step / self.settings.steps, self.state.seconds / self.budget)

    def run(self, stop: float = math.inf) -> bool:
        """Train until the steps or the time are used up, and return whether they are. Pause once `stop` seconds have
        passed since `started`."""
        before = self.state.seconds
        began = time.monotonic()
        first = self.state.step
        mark = began
        marked_step = first
        while self.progress < 1 and time.monotonic() - self.started < stop:
            loss = self.step()
            if self.device.type == "cuda" and self.state.step % SYNC_EVERY == 0:
                torch.cuda.synchronize()
            self.state.seconds = before + time.monotonic() - began
            done = self.state.step
            if done % self.settings.log_every == 0:
                value = float(loss)
                now = time.monotonic()
                speed = (done - marked_step) * self.batches.tokens / max(now - mark, 1e-9)
                self.note(
                    loss=round(value, 5),
                    lr=round(rate_at(self.settings, done - 1, self.progress), 7),
                    tokens_per_s=round(speed),
                    progress=round(self.progress, 4),
                )
                mark = time.monotonic()
                marked_step = done
            if done % self.settings.probe_every == 0:
                self.note(event="probe", held_out=self.probe_loss())
            if done % self.settings.save_every == 0:
                self.state.save(self.folder)
        if self.state.step > first or not (self.folder / STATE).is_file():
            self.state.save(self.folder)
        return self.progress >= 1

    def step(self) -> Tensor:
        """One update of the weights and of their average."""
        state = self.state
        batch = self._noisy(state.step)
        if self.replay is not None:
            total = self.replay(batch)
        else:
            state.network.zero_grad(set_to_none=True)
            total = backward(state.network, batch, self.entropy, self.autocast)
        gradients = state.gradients()
        clip(gradients, self.settings.clip)
        state.optimizer.step(gradients, rate_at(self.settings, state.step, self.progress))
        state.publish()
        state.step += 1
        state.follow(min(self.settings.ema, (1 + state.step) / (10 + state.step)))
        return total

    @torch.no_grad()
    def probe_loss(self) -> dict[str, float]:
        """The loss per answer token on held-out prompts, by task, always under the same masks."""
        names = self.settings.tasks
        sums = torch.zeros(len(names))
        counts = torch.zeros(len(names))
        generator = self._generator(0)
        for rows in self.probe:
            full = self.settings.full_masked
            noisy = add_noise(rows, self.tokenizer.mask_id, full, generator, _most_masks(rows, len(rows), full))
            with torch.compiler.set_stance("force_eager"):  # these shapes are not worth compiling
                loss = losses(self.state.network, noisy, autocast=self.autocast)
            task = rows.task.long()
            length = rows.tokens.shape[1]
            per_row = torch.zeros(len(rows), device=loss.device).index_add_(0, noisy.at // length, loss.float())
            sums.index_add_(0, task.cpu(), (per_row / rows.answer.float().sqrt()).cpu())
            counts.index_add_(0, task.cpu(), torch.ones(len(rows)))
        return {name: round(float(s / c), 5) for name, s, c in zip(names, sums, counts, strict=True) if c > 0}

    def export(self, folder: Path) -> None:
        """Write the averaged weights as a checkpoint folder, with the log of the run."""
        weights = dict(self.state.network.named_parameters())
        averaged = dict(zip(self.state.weights, self.state.average, strict=True))
        export(folder, self.settings, {**weights, **averaged}, self.tokenizer)
        write_bytes(folder / LOG, (self.folder / LOG).read_bytes())

    def record(self) -> dict[str, Any]:
        """The record that is kept beside the weights: the settings, and where and how long the training ran."""
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None
        return {
            "settings": dataclasses.asdict(self.settings),
            "steps": self.state.step,
            "tokens": self.state.step * self.batches.tokens,
            "seconds": round(self.state.seconds, 1),
            "parameters": sum(weight.numel() for weight in self.state.network.parameters()),
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
