"""One model in several processes: heads and hidden units of every layer are divided among them (tensor parallelism).

Every process runs the same decoding and sees the same logits and attention, so nothing has to be sent but sums. This is
for models that one device cannot hold: of a model that fits, several whole copies decode more texts.
"""

from __future__ import annotations

import atexit
import os
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from dapd.errors import DapdError
from dapd.models.base import Prediction
from dapd.models.checkpoint import Part
from dapd.models.transformer import Layer, Transformer, TransformerConfig, unfused

ADVICE = "torchrun --nproc-per-node 2 -m dapd generate ... --tensor-parallel"


class ShardedTransformer(Transformer):
    """This process's part of a network. It predicts as the whole network does if all processes make the same calls."""

    graphable = False
    """CUDA graphs of passes that communicate with other processes were never tried."""

    def __init__(self, config: TransformerConfig, mesh: DeviceMesh) -> None:
        check_divisible(config, mesh.size())
        super().__init__(config)
        self.mesh = mesh
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.n_heads //= mesh.size()
            layer.n_kv_heads //= mesh.size()
            self._divide(layer, ("qkv_proj", "gate_up_proj"), ColwiseParallel)
            self._divide(layer, ("o_proj", "down_proj"), RowwiseParallel, arrives=True)
        # The vocabulary is divided as well, and the logits are gathered: all processes read the same ones, to the bit.
        self._divide(self, ("embed",), RowwiseParallel, arrives=True, input_layouts=Replicate())
        self._divide(self, ("head",), ColwiseParallel, arrives=True, output_layouts=Replicate())

    @property
    def part(self) -> Part:
        """The part of every divided tensor that this process holds."""
        return Part(self.mesh.get_local_rank(), self.mesh.size())

    @torch.no_grad()
    def held(self, *, tied_twice: bool = False) -> dict[str, Tensor]:
        named = self.named_parameters(remove_duplicate=not tied_twice)
        local = {name: weight.to_local() if isinstance(weight, DTensor) else weight for name, weight in named}
        return unfused(self.config, local)

    def forward(self, *args: Any, **kwargs: Any) -> Prediction:
        """The whole network's prediction. Each process captures the attention of its own heads; as all have the same
        number of heads, the attention is the mean over the processes."""
        prediction = super().forward(*args, **kwargs)
        if prediction.attention is None:
            return prediction
        attention = prediction.attention / self.mesh.size()
        dist.all_reduce(attention, group=self.mesh.get_group())
        return replace(prediction, attention=attention)

    def _divide(
        self, owner: nn.Module, names: tuple[str, ...], style: type[Any], *, arrives: bool = False, **layouts: Any
    ) -> None:
        """Divide some linear layers. Nothing is sent for that, because the weights are loaded later.

        With `arrives` a layer's output is waited for, as `_arrived` says.
        """
        for name in names:
            parallelize_module(owner, self.mesh, {name: style(**layouts)}, src_data_rank=None)
            if arrives:
                owner.get_submodule(name).register_forward_hook(_arrived)


def _arrived(_module: nn.Module, _args: object, out: Tensor) -> Tensor:
    """The output, once the shares of all processes have arrived: our own kernels do not wait for a tensor."""
    return out.wait() if isinstance(out, AsyncCollectiveTensor) else out


def check_divisible(config: TransformerConfig, size: int) -> None:
    """Refuse a number of processes that heads or hidden units cannot be divided by."""
    for what, count in (("key-value heads", config.n_kv_heads), ("hidden units", config.d_mlp)):
        if count % size:
            raise DapdError(f"the model has {count} {what}, which {size} processes cannot divide evenly")


def join(device: torch.device) -> tuple[DeviceMesh, torch.device]:
    """Wait for all processes that a launcher started for one model; returns their mesh and this process's device."""
    size = os.environ.get("WORLD_SIZE", "1")
    if not size.isdigit() or int(size) < 2 or "MASTER_ADDR" not in os.environ:
        raise DapdError(f"tensor parallelism is for several processes: start them with {ADVICE}")
    if device.type == "cuda":
        device = local_device()
        torch.cuda.set_device(device)
    mesh = init_device_mesh(device.type, (int(size),))
    # Threads of the process group that outlive the interpreter sometimes abort the process.
    atexit.register(dist.destroy_process_group)
    return mesh, device


def local_device() -> torch.device:
    """The GPU of this process on its machine."""
    local = int(os.environ.get("LOCAL_RANK", 0))
    count = torch.cuda.device_count()
    if local >= count:
        raise DapdError(
            f"process {local} of this machine finds {count} GPUs: start as many processes as there are GPUs"
        )
    return torch.device("cuda", local)
