"""What a compiled program says of itself: collectives, loops and the buffers it holds.

Compilers tell how much memory a program needs, but not what passes between devices:
that stands in its text. An instruction in the body of a loop is run once for each turn.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

Dims = tuple[int, ...]

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z0-9\-]*)\(")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*)(?:e\dm\d\w*)?\[([\d,]*)\]")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch|called)_computations=\{([^}]*)\}")
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


@dataclasses.dataclass(frozen=True)
class Array:
    """A part of what an instruction returns."""

    dtype: str
    dims: Dims

    @property
    def size(self) -> int:
        """Its elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """What it takes, without the padding of a layout."""
        bits = re.search(r"\d+", self.dtype)
        return self.size * (int(bits[0]) if bits else 8) // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of a program."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    text: str

    @property
    def bytes(self) -> int:
        """What it returns."""
        return sum(array.bytes for array in self.arrays)

    def called(self) -> Iterator[tuple[str, str]]:
        """Yields the computations that it runs, each after how it is named."""
        for how, name in _CALLED.findall(self.text):
            yield how, name
        for names in _BRANCHES.findall(self.text):
            for name in re.findall(r"[\w.\-]+", names):
                yield "branch", name

    def attribute(self, pattern: str) -> str | None:
        """Returns the first group of a pattern in it."""
        found = re.search(pattern, self.text)
        return found and found[1]


@dataclasses.dataclass(frozen=True)
class Collective:
    """Something that devices exchange.

    Attributes:
      axes: of the mesh, along which; () where that cannot be told.
      arrays: whole: what was gathered, or what is scattered.
      times: how often in a run of the program.
      source: the operation that it was made for.
    """

    kind: str
    axes: tuple[str, ...]
    arrays: tuple[Array, ...]
    times: int
    source: str

    @property
    def bytes(self) -> int:
        """Of all times together."""
        return self.times * sum(array.bytes for array in self.arrays)


class Program:
    """The text of a compiled program, read."""

    def __init__(self, text: str):
        self._computations: dict[str, list[Instruction]] = {}
        self._entry = ""
        body: list[Instruction] = []
        for line in text.splitlines():
            if found := _INSTRUCTION.match(line):
                arrays = tuple(
                    Array(dtype, tuple(int(n) for n in dims.split(",") if n))
                    for dtype, dims in _ARRAY.findall(found[2])
                )
                body.append(Instruction(found[1], found[3], arrays, line))
            elif not line.startswith(" ") and (found := _COMPUTATION.match(line)):
                body = self._computations[found[2]] = []
                if found[1]:
                    self._entry = found[2]

    @functools.cached_property
    def _runs(self) -> dict[str, int]:
        """How often each computation is run."""
        runs = dict.fromkeys(self._computations, 0)

        def visit(name: str, times: int) -> None:
            runs[name] += times
            for instruction in self._computations[name]:
                turns = 1
                if instruction.opcode == "while":
                    turns = self._turns(instruction)
                for _, callee in instruction.called():
                    visit(callee, times * turns)

        visit(self._entry, 1)
        return runs

    def _turns(self, loop: Instruction) -> int:
        """Returns how often a loop runs.

        Some compilers write it down. Others leave a counter from 0 on, compared with
        the only whole number of the condition; a loop of another kind counts once.
        """
        known = loop.attribute(r'known_trip_count[^0-9]*"(\d+)"')
        if known is not None:
            return int(known)
        condition = loop.attribute(r"\bcondition=%?([\w.\-]+)")
        names = [condition] if condition else []
        bounds: set[int] = set()
        while names:
            for instruction in self._computations[names.pop()]:
                names += [name for _, name in instruction.called()]
                bound = instruction.attribute(r" [su]32\[\]\S* constant\((\d+)\)")
                bounds |= {int(bound)} if bound else set()
        return bounds.pop() if len(bounds) == 1 else 1

    @functools.cached_property
    def _fused(self) -> set[str]:
        """The computations whose values stay within a fusion or a reduction."""
        return {
            name
            for body in self._computations.values()
            for instruction in body
            if instruction.opcode not in ("while", "conditional", "call")
            for how, name in instruction.called()
            if how in ("calls", "to_apply") and "async" not in instruction.opcode
        }

    def buffers(self) -> Iterator[tuple[Instruction, Array]]:
        """Yields what is held in memory: all but the inside of fusions."""
        for name, body in self._computations.items():
            if name not in self._fused:
                for instruction in body:
                    for array in instruction.arrays:
                        yield instruction, array

    def loop_states(self) -> Iterator[tuple[Array, ...]]:
        """Yields what each loop carries from turn to turn."""
        for body in self._computations.values():
            for instruction in body:
                if instruction.opcode == "while":
                    yield instruction.arrays

    def collectives(self, mesh: Mapping[str, int]) -> list[Collective]:
        """Returns what the devices of a mesh exchange, the largest first.

        A collective that goes on beside other work is written in several pieces, all
        with the number of its channel.
        """
        found: dict[str, Collective] = {}
        for name, body in self._computations.items():
            operands = {instruction.name: instruction for instruction in body}
            for instruction in body:
                kind = instruction.opcode.removesuffix("-start")
                if kind not in _COLLECTIVES or _is_alone(instruction.text):
                    continue
                if name.startswith("all-reduce-scatter"):
                    kind = "reduce-scatter"
                channel = instruction.attribute(r"channel_id=(\d+)")
                key = channel or instruction.name
                before = found[key].times if key in found else 0
                found[key] = Collective(
                    kind,
                    _axes(instruction.text, mesh),
                    _whole(instruction, operands),
                    max(before, self._runs[name]),
                    instruction.attribute(r'op_name="([^"]*)"') or "",
                )
        used = (collective for collective in found.values() if collective.times)
        return sorted(used, key=lambda collective: -collective.bytes)


def _whole(
    instruction: Instruction, operands: Mapping[str, Instruction]
) -> tuple[Array, ...]:
    """Returns what is exchanged: the larger of what goes in and what comes out."""
    given = instruction.text.partition(f" {instruction.opcode}(")[2]
    names = re.findall(r"%([\w.\-]+)", given.partition(")")[0])
    sent = [a for n in names if n in operands for a in operands[n].arrays]
    received = list(instruction.arrays)
    if instruction.opcode.endswith("-start") and len(received) > 1:
        received = received[len(sent) :]  # the first are those that go in
    size = lambda arrays: sum(array.bytes for array in arrays)
    return tuple(max(sent, received, key=size))


# ---- groups of devices ----


def _axes(text: str, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the axes of the mesh along which the first group of devices lies."""
    group = _first_group(text)
    if group is None or len(group) < 2:
        return ()
    places = np.unravel_index(group, tuple(mesh.values()))
    return tuple(
        axis for axis, at in zip(mesh, places, strict=True) if len(set(at.tolist())) > 1
    )


def _is_alone(text: str) -> bool:
    """Says whether each device exchanges with itself only, along an axis of one."""
    group = _first_group(text)
    return group is not None and len(group) == 1


def _first_group(text: str) -> np.ndarray | None:
    """Returns the numbers of the devices of a group, in any of the ways of writing."""
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return np.array([int(number) for number in found[1].split(",")])
    if found := re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", text):
        return np.array([int(found[1]), int(found[2])])
    if found := re.search(
        r"replica_groups=\[(\d+),(\d+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", text
    ):
        return _numbered(found[3]).reshape(int(found[1]), int(found[2]))[0]
    found = re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^ ]*)\))? \{([^}]*)\}",
        text,
    )
    if found is None or ":" in found[3]:
        return None
    sizes = [int(size) for size in re.findall(r"=(\d+)", found[1])]
    names = re.findall(r"'(\w+)'=", found[1])
    devices = np.arange(math.prod(sizes)) if not found[2] else _numbered(found[2])
    chosen = re.findall(r"'(\w+)'", found[3])
    index = tuple(slice(None) if name in chosen else 0 for name in names)
    return devices.reshape(sizes)[index].ravel()


def _numbered(text: str) -> np.ndarray:
    """Returns the numbers from 0 on as `[2,4,2]T(1,0,2)` orders them."""
    first, *rest = re.findall(r"[\[(]([\d,]+)[\])]", text)
    sizes = [int(size) for size in first.split(",")]
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    if rest:
        numbers = numbers.transpose([int(axis) for axis in rest[0].split(",")])
    return numbers.ravel()


# ---- what should not be there ----


def global_arrays(
    program: Program, rows: set[int], lengths: set[int]
) -> dict[str, str]:
    """Returns arrays of a whole batch of states or scores, and what makes each.

    Args:
      program: as one device runs it.
      rows: of the global batch, and of a microbatch of it.
      lengths: of rows, and the slots that are predicted: what comes after the rows.
    """
    joined = {row * length for row in rows for length in lengths}
    found: dict[str, str] = {}
    for instruction, array in program.buffers():
        if _is_global(array.dims, rows, lengths) or _is_global(
            array.dims, joined, None
        ):
            source = instruction.attribute(r'op_name="([^"]*)"') or instruction.name
            found.setdefault(str(array), source)
    return found


def _is_global(dims: Dims, rows: set[int], lengths: set[int] | None) -> bool:
    """Says whether rows stand in front, and a length and something else behind them.

    In front is also behind an axis of layers or microbatches. A length may be part of
    the rows already.
    """
    for place, size in enumerate(dims):
        if place > 1 and any(n > 1 for n in dims[:place]):
            return False
        behind = [n for n in dims[place + 1 :] if n > 1]
        if size in rows and behind:
            return lengths is None or (len(behind) > 1 and behind[0] in lengths)
    return False
