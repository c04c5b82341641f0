"""Embedding tables sharded over ranks, entries fetched by index, after ``deep_ep.buffers.engram``.

An entry's scales are kept behind its values, so that one exchange brings both. Fetching is collective here: every rank of the group
calls it as often as the others. A table on the device is fetched through a fixed number of slots a pair of ranks, without a host
sync, as many as one rank could ask for; one on the host through as many as some rank asks of another, which ranks agree on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from .._C import get_num_allocation_alignment, get_num_rdma_alignment
from ..comm.barrier import barrier
from ..comm.handle import get_logical_domain_size, get_physical_domain_size
from ..utils.math import align, ceil_div
from .base import BufferBase, _Runtime

_SF_PACK_BYTES = 4
_SF_COLUMN_BYTES = 16
# Of upstream's estimate of queue pairs: requests a second of a network card, how long one takes, and the deepest queue.
_READS_PER_SECOND = 45e6
_READ_SECONDS = 10e-6
_DEFAULT_DEPTH = 1024
_MOST_DEPTH = 32768
# Rows copied at a time when a table is written.
_WRITTEN_ROWS = 1 << 16


def _takes_former_name(init: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(init)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        if "num_rdma_storage_size" in kwargs:
            if "num_rdma_storage_bytes" in kwargs:
                raise TypeError("num_rdma_storage_size is the former name of num_rdma_storage_bytes: give one of them")
            kwargs["num_rdma_storage_bytes"] = kwargs.pop("num_rdma_storage_size")
        init(self, *args, **kwargs)

    return call


class EngramBuffer(BufferBase):
    """This rank's shard of the tables of all layers, and the fetch over all ranks. ``group`` None, or of one, exchanges nothing.

    Attributes:
        group, rank_idx, num_ranks: the ranks, and this one among them.
        num_gpu_bytes, num_rdma_storage_bytes, use_cpu_rdma_storage, num_allocated_qps, allow_hybrid_mode: as given.
        num_scaleout_ranks, num_scaleup_ranks, scaleout_rank_idx, scaleup_rank_idx, num_rdma_ranks, num_nvlink_ranks: see
            ``deep_ep.comm``.
    """

    barrier = barrier
    get_physical_domain_size = get_physical_domain_size
    get_logical_domain_size = get_logical_domain_size

    @_takes_former_name
    def __init__(
        self,
        group: dist.ProcessGroup,
        num_gpu_bytes: int,
        num_rdma_storage_bytes: int,
        use_cpu_rdma_storage: bool,
        num_allocated_qps: int,
        qp_depth: int,
        restrict_rd_atomic: bool = False,
        allow_hybrid_mode: bool = True,
        sl_idx: int | None = None,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
    ):
        assert num_allocated_qps > 0 and qp_depth > 0, "take num_allocated_qps and qp_depth from get_theoretical_config"
        super().__init__(explicitly_destroy)
        self._join(group)
        self.num_gpu_bytes = num_gpu_bytes
        self.num_rdma_storage_bytes = num_rdma_storage_bytes
        self.use_cpu_rdma_storage = use_cpu_rdma_storage
        self.allow_hybrid_mode = allow_hybrid_mode
        self.num_allocated_qps = num_allocated_qps
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = divmod(self.rank_idx, self.num_scaleup_ranks)
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()
        self._entries: tuple[int, ...] = ()
        self._hidden = self._item_bytes = self._max_tokens = self._packs = 0
        self._sf_dtype: torch.dtype | None = None
        self._table: torch.Tensor | None = None
        self._constants: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}
        on_host = num_rdma_storage_bytes if use_cpu_rdma_storage else 0
        self.runtime = _Runtime(
            self.rank_idx, self.num_ranks, num_gpu_bytes + num_rdma_storage_bytes - on_host, on_host
        )

    def destroy(self) -> None:
        """Release the tables; see ``BufferBase.destroy``."""
        super().destroy()
        self._table = None

    @staticmethod
    def get_storage_size_hint(
        group: dist.ProcessGroup,
        num_entries_per_layer: list[int],
        hidden: int,
        num_max_tokens: int,
        num_entries_per_token: int,
        dtype: torch.dtype = torch.bfloat16,
        num_sf_packs: int = 0,
    ) -> tuple[int, int]:
        """Bytes that upstream takes on the device, for received entries and scales, and for this rank's shard of the tables.

        ``num_entries_per_layer``: entries a rank. Both are multiples of the allocation alignment.
        """
        entry_bytes = hidden * dtype.itemsize
        assert (
            entry_bytes % get_num_rdma_alignment() == 0
        ), f"expected entries of whole {get_num_rdma_alignment()} bytes, got {entry_bytes}"
        step, entries = get_num_allocation_alignment(), sum(num_entries_per_layer)
        received = align(len(num_entries_per_layer) * num_max_tokens * num_entries_per_token * entry_bytes, step)
        domains, _ = get_physical_domain_size(group)
        return received + align(entries * domains * num_sf_packs * _SF_PACK_BYTES, step), align(
            entries * entry_bytes, step
        )

    @staticmethod
    @functools.cache
    def get_theoretical_config(
        group: dist.ProcessGroup,
        num_layers: int,
        num_max_tokens: int,
        num_entries_per_token: int,
        num_max_read_requests_per_qp: int = 16,
    ) -> tuple[int, int, bool]:
        """Queue pairs, their depth, and whether to limit outstanding reads, as upstream estimates them; they change nothing here."""
        sizes = (num_layers, num_max_tokens, num_entries_per_token, num_max_read_requests_per_qp)
        assert min(sizes) > 0, f"expected positive sizes, got {sizes}"
        _, peers = get_logical_domain_size(group)
        pairs = max(math.ceil(_READS_PER_SECOND * _READ_SECONDS / num_max_read_requests_per_qp / peers), 1)
        requests = num_layers * num_max_tokens * num_entries_per_token
        needed = ceil_div(requests, pairs * peers)
        if needed > _MOST_DEPTH:
            return int(ceil_div(requests, _MOST_DEPTH * peers) * 1.05), _MOST_DEPTH, True
        depth = _DEFAULT_DEPTH
        while depth < needed:
            depth *= 2
        return pairs, depth, False

    def set_config(
        self,
        num_entries_per_layer: list[int],
        hidden: int,
        num_max_tokens: int,
        num_entries_per_token: int,
        dtype: torch.dtype = torch.bfloat16,
        num_sf_packs: int = 0,
    ) -> None:
        """Fix the sizes of tables and fetches: entries a rank and layer, values an entry, the most tokens of a fetch."""
        assert num_max_tokens > 0 and num_entries_per_token > 0, f"{num_max_tokens=} {num_entries_per_token=}"
        assert all(count > 0 for count in num_entries_per_layer), f"{num_entries_per_layer=}"
        entry_bytes = hidden * dtype.itemsize
        assert (
            entry_bytes % get_num_rdma_alignment() == 0
        ), f"expected entries of whole {get_num_rdma_alignment()} bytes, got {entry_bytes}"
        assert (
            sum(num_entries_per_layer) * entry_bytes <= self.num_rdma_storage_bytes
        ), "the tables are larger than num_rdma_storage_bytes"
        received = len(num_entries_per_layer) * num_max_tokens * num_entries_per_token * entry_bytes
        assert received <= self.num_gpu_bytes, "what a fetch receives is larger than num_gpu_bytes"
        self._entries = tuple(num_entries_per_layer)
        self._constants = {}
        self._hidden, self._item_bytes, self._max_tokens, self._packs = (
            hidden,
            dtype.itemsize,
            num_max_tokens,
            num_sf_packs,
        )

    def write(self, storages: list[torch.Tensor], sfs: list[torch.Tensor] | None = None) -> None:
        """Copy this rank's shards in: a layer's [entries, hidden], bf16 or e4m3, and with it the scales of *all* ranks' entries.

        ``sfs``: [ranks * entries, packs] a layer, or None; only this rank's part is kept.
        """
        assert self._entries and len(storages) == len(
            self._entries
        ), f"expected {len(self._entries)} tables, got {len(storages)}"
        assert (sfs is not None) == (
            self._packs > 0
        ), f"expected {self._packs} packs of scales an entry, {sfs is not None=}"
        sf_bytes = 0
        if sfs is not None:
            self._sf_dtype = sfs[0].dtype
            sf_bytes = align(self._packs * sfs[0].itemsize, 4)
        words = (self._hidden * self._item_bytes + sf_bytes) // 4
        # porter: ignore[PT101] the caller asks for a table on the host
        device = torch.device("cpu") if self.use_cpu_rdma_storage else storages[0].device
        self._table = torch.empty((sum(self._entries), words), dtype=torch.int32, device=device)
        first = 0
        for layer, (storage, count) in enumerate(zip(storages, self._entries, strict=True)):
            shape = (count, self._hidden)
            assert storage.shape == shape, f"expected {shape}, got {tuple(storage.shape)}"
            assert storage.dtype in (torch.bfloat16, torch.float8_e4m3fn), f"{storage.dtype=}"
            own = None
            if sfs is not None:
                assert sfs[layer].shape == (count * self.num_ranks, self._packs), f"{sfs[layer].shape=}"
                own = sfs[layer][self.rank_idx * count : (self.rank_idx + 1) * count]
            # Some rows at a time: tables are large, and there is no room for a second one.
            for start in range(0, count, _WRITTEN_ROWS):
                stop = min(start + _WRITTEN_ROWS, count)
                row = self._row_bytes(storage[start:stop])
                if own is not None:
                    sf = self._row_bytes(own[start:stop])
                    sf = torch.nn.functional.pad(sf, (0, sf_bytes - sf.shape[1])).to(storage.device)
                    row = torch.cat((row, sf), 1)
                self._table[first + start : first + stop].copy_(row.view(torch.int32))
            first += count

    def fetch(
        self, indices: torch.Tensor, num_qps: int = 0, use_tma_aligned_col_major_sf: bool = True
    ) -> list[Callable[..., Any]]:
        """Start fetching entries of all layers; one hook a layer waits for it.

        ``indices``: int32 [layers, tokens, entries a token], rank * entries of the layer + entry; what a negative one brings is
        undefined. A hook returns [tokens, entries a token * hidden], and with scales a pair of it and [tokens, entries a token *
        packs], column-major with columns padded to 16 bytes, or row-major.
        """
        assert self._table is not None, "nothing was written yet"
        assert num_qps <= self.num_allocated_qps, f"{num_qps=}, {self.num_allocated_qps} allocated"
        layers, tokens, each = indices.shape
        assert layers == len(self._entries) and tokens <= self._max_tokens, f"{indices.shape=}"
        assert indices.dtype == torch.int32, f"{indices.dtype=}"
        wanted, work = self._fetch_rows(indices)

        def hook(layer: int) -> Any:
            if work is not None:
                work.wait()
            first = layer * tokens * each
            return self._entries_of(wanted()[first : first + tokens * each], tokens, each, use_tma_aligned_col_major_sf)

        return [functools.partial(hook, layer) for layer in range(layers)]

    def _entries_of(self, rows: torch.Tensor, tokens: int, each: int, column_major: bool) -> Any:
        data_words = self._hidden * self._item_bytes // 4
        dtype = torch.float8_e4m3fn if self._item_bytes == 1 else torch.bfloat16
        data = rows[:, :data_words].reshape(tokens, each * data_words).view(dtype)
        if not self._packs or self._sf_dtype is None:
            return data
        sf = rows[:, data_words:].view(self._sf_dtype)[:, : self._packs].reshape(tokens, each * self._packs)
        if not column_major:
            return data, sf
        step = max(_SF_COLUMN_BYTES // sf.itemsize, 1)
        out = torch.empty_strided(sf.shape, (1, align(tokens, step)), dtype=sf.dtype, device=sf.device)
        return data, out.copy_(sf)

    def _fetch_rows(self, indices: torch.Tensor) -> tuple[Callable[[], torch.Tensor], Any]:
        """A function that gives the rows of all indices, in their order, and the work to wait for before it is called."""
        device, (layers, _, each) = indices.device, indices.shape
        count, first = self._layer_constants(device)
        if self.num_ranks == 1:
            rows = self._local_rows((indices.clamp(min=0) + first).view(-1), device)
            return (lambda: rows), None
        owner = torch.div(indices, count, rounding_mode="floor").clamp_(0, self.num_ranks - 1)
        place = (indices - owner * count).clamp_(min=0).add_(first).view(-1)
        owner = owner.view(-1)
        ordinal = _one_hot(owner, self.num_ranks).cumsum(0)
        if self.use_cpu_rdma_storage:
            most = ordinal[-1].amax() if place.shape[0] else ordinal.new_zeros(())
            # NEURON: host sync
            slots = max(int(self._gather(most.to(torch.int32).view(1))[0].max()), 1)
        else:
            slots = layers * self._max_tokens * each
        entry = torch.arange(place.shape[0], dtype=torch.int32, device=device)
        slot = owner * slots + (ordinal[entry, owner] - 1).to(torch.int32)
        request = torch.zeros(self.num_ranks * slots, dtype=torch.int32, device=device).index_put_((slot,), place)
        requests, _ = self._exchange(request.view(self.num_ranks, slots))
        answers, work = self._exchange(
            self._local_rows(requests.view(-1), device).view(self.num_ranks, slots, -1), in_background=True
        )
        return (lambda: answers.flatten(0, 1).index_select(0, slot)), work

    def _layer_constants(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """int32 [layers, 1, 1]: a layer's entries on each rank, and where they start in the table. Brought to a device once."""
        if device not in self._constants:
            starts = [sum(self._entries[:layer]) for layer in range(len(self._entries))]
            both = torch.tensor([self._entries, starts], dtype=torch.int32, device=device).view(2, -1, 1, 1)
            self._constants[device] = both[0], both[1]
        return self._constants[device]

    def _local_rows(self, place: torch.Tensor, device: torch.device) -> torch.Tensor:
        """int32 words [n, row] of this rank's table at ``place`` [n], on ``device``."""
        assert self._table is not None
        if self._table.device == device:
            return self._table.index_select(0, place)
        # NEURON: host sync
        return self._table.index_select(0, place.to(self._table.device)).to(device)


def _one_hot(index: torch.Tensor, count: int) -> torch.Tensor:
    """fp32 [n, count], 1 at each ``index``: counting in floats, integer sums are not for the device."""
    return (index.unsqueeze(1) == torch.arange(count, dtype=torch.int32, device=index.device)).to(torch.float32)
