"""Simulates TensorFlow's memory pool, to find how many bytes its chunks hold for a sequence of requests.

It is the best-fit allocator with coalescing of tsl/framework/bfc_allocator.cc. GPUs use it, and so do CPUs for 256 KiB
or more if oneDNN is on. A request gets the smallest free chunk that fits. It gets all of the chunk unless that is twice
as large.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

# On a CPU, smaller requests go to the operating system, and are not counted.
CPU_POOL_MIN_BYTES = 256 * 1024
_ROUND_BYTES = 256
_FIRST_REGION_BYTES = 2 << 20
_MAX_SLACK_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """A request of `size_bytes` for `owner`; if `size_bytes` is None, `owner` returns its memory to the pool."""

    owner: Hashable
    size_bytes: int | None


@dataclass(eq=False, slots=True)
class _Chunk:
    """A piece of a region. Neighbours are None at the region's ends."""

    size_bytes: int
    number: int
    before: "_Chunk | None" = None
    after: "_Chunk | None" = None
    is_free: bool = True


@dataclass
class _Pool:
    """A pool that serves requests as TensorFlow's allocator does."""

    region_bytes: int = _FIRST_REGION_BYTES
    free: list[tuple[int, int, _Chunk]] = field(default_factory=list)
    held: dict[Hashable, _Chunk] = field(default_factory=dict)
    num_chunks: int = 0
    in_use_bytes: int = 0
    peak_bytes: int = 0

    def take(self, owner: Hashable, size_bytes: int) -> None:
        """Assigns the smallest free chunk that fits to an owner, and splits it if it is much too large."""
        size = -(-max(size_bytes, 1) // _ROUND_BYTES) * _ROUND_BYTES
        chunk = self.take_best(size) or self.add_region(size)
        if chunk.size_bytes >= 2 * size or chunk.size_bytes - size >= _MAX_SLACK_BYTES:
            rest = self.add_chunk(chunk.size_bytes - size, before=chunk, after=chunk.after)
            chunk.size_bytes = size
            self.put(rest)
        chunk.is_free = False
        self.held[owner] = chunk
        self.in_use_bytes += chunk.size_bytes
        self.peak_bytes = max(self.peak_bytes, self.in_use_bytes)

    def give(self, owner: Hashable) -> None:
        """Takes an owner's chunk back, and joins it with free neighbours."""
        chunk = self.held.pop(owner)
        self.in_use_bytes -= chunk.size_bytes
        for first, second in ((chunk, chunk.after), (chunk.before, chunk)):
            neighbour = second if first is chunk else first
            if first is None or second is None or neighbour is None or not neighbour.is_free:
                continue
            self.drop(neighbour)
            first.size_bytes += second.size_bytes
            first.after = second.after
            if first.after is not None:
                first.after.before = first
            chunk = first
        self.put(chunk)

    def take_best(self, size: int) -> _Chunk | None:
        """Removes the smallest free chunk of at least this size from the free list and returns it; None without one."""
        position = bisect_left(self.free, (size, -1))
        return self.free.pop(position)[2] if position < len(self.free) else None

    def add_region(self, size: int) -> _Chunk:
        """Adds a region in which a chunk of this size fits. Regions double in size."""
        doubled = False
        while size > self.region_bytes:
            self.region_bytes, doubled = 2 * self.region_bytes, True
        chunk = self.add_chunk(self.region_bytes)
        self.region_bytes *= 1 if doubled else 2
        return chunk

    def add_chunk(self, size: int, before: _Chunk | None = None, after: _Chunk | None = None) -> _Chunk:
        """Adds a chunk between two neighbours."""
        self.num_chunks += 1
        chunk = _Chunk(size, self.num_chunks, before, after)
        if before is not None:
            before.after = chunk
        if after is not None:
            after.before = chunk
        return chunk

    def put(self, chunk: _Chunk) -> None:
        """Puts a chunk on the free list."""
        chunk.is_free = True
        insort(self.free, (chunk.size_bytes, chunk.number, chunk))

    def drop(self, chunk: _Chunk) -> None:
        """Removes a chunk from the free list."""
        self.free.pop(bisect_left(self.free, (chunk.size_bytes, chunk.number)))


def simulate_pool_peak_bytes(
    requests: Iterable[Request],
    *,
    variables: Iterable[int] = (),
    arguments: Iterable[int] = (),
    reserved_bytes: int = 0,
    min_bytes: int = 0,
) -> int:
    """Returns the most bytes in chunks in use at once, when a pool serves the requests for the second time.

    Memory in use before the requests does not count. The places of variables and arguments determine which chunks are
    free, and therefore how much larger than the requests the chunks in use are.

    Args:
        requests: owners are distinct while they hold memory. All of it is returned at the end.
        variables: bytes of each, in the order of creation. They are initialized with random numbers, which are drawn,
            scaled and shifted.
        arguments: bytes of each, created after the variables.
        reserved_bytes: taken and returned before the requests, so that one free chunk has this size.
        min_bytes: smaller requests are left out.
    """
    requests = list(requests)
    pool = _Pool()
    for number, size_bytes in enumerate(variables):
        if size_bytes >= min_bytes:
            parts = [("drawn", number), ("scaled", number), ("variable", number)]
            for part in parts:
                pool.take(part, size_bytes)
            pool.give(parts[0])
            pool.give(parts[1])
    for number, size_bytes in enumerate(arguments):
        if size_bytes >= min_bytes:
            pool.take(("argument", number), size_bytes)
    pool.take("reserved", reserved_bytes)
    pool.give("reserved")
    resident_bytes = pool.in_use_bytes
    for _ in range(2):
        pool.peak_bytes = resident_bytes
        held: set[object] = set()
        for request in requests:
            if request.size_bytes is None:
                if request.owner in held:
                    held.remove(request.owner)
                    pool.give(request.owner)
            elif request.size_bytes >= min_bytes:
                held.add(request.owner)
                pool.take(request.owner, request.size_bytes)
        for owner in sorted(held, key=repr):
            pool.give(owner)
    return pool.peak_bytes - resident_bytes
