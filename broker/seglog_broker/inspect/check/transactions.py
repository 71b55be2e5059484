"""The comparison of a partition's transaction indexes with the transactions that were aborted in its log."""

from collections.abc import Callable, Collection, Sequence

from seglog_broker.inspect.check.plan import CheckResult
from seglog_broker.inspect.findings import Code
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_protocol import segment_files as names
from seglog_protocol.checksum import crc32c
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.header_scan import LocatedBatch
from seglog_protocol.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT
from seglog_protocol.records import decode_records
from seglog_protocol.transaction_files import (
    TXN_INDEX_ENTRY,
    TXN_INDEX_VERSION,
    AbortedTransaction,
    aborted_transaction,
    decode_end_marker,
    encode_aborted_transaction,
)

_OF_TRANSACTIONS = CONTROL_BIT | TRANSACTIONAL_BIT


class TransactionCheck:
    """Follows the transactions of one log. ``add`` every valid batch in order, then ``judge``."""

    def __init__(self, fs: FileSystem, directory: str, bases: Sequence[int]) -> None:
        """``bases`` are the base offsets of the segments, ascending."""
        self._fs = fs
        self._directory = directory
        self._bases = bases
        self._opened: dict[int, int] = {}  # producer id -> first offset
        self._aborted: dict[int, list[AbortedTransaction]] = {base: [] for base in bases}

    def add(self, base: int, found: LocatedBatch) -> None:
        """Note a batch of the segment ``base``. Only end markers are read. Raises OSError."""
        header = found.header
        if not header.attributes & _OF_TRANSACTIONS:
            return
        if not header.is_control:
            self._opened.setdefault(header.producer_id, header.base_offset)
            return
        with self._fs.open(self._path(base, names.LOG_SUFFIX)) as file:
            batch = file.pread(header.size, found.position)
        try:
            records = decode_records(header, batch)
        except CorruptRecordError:
            return
        marker = decode_end_marker(records[0].key, records[0].value) if records else None
        first = None if marker is None else self._opened.pop(header.producer_id, None)
        if marker is not None and first is not None and marker.type == "ABORT":
            stable = min(self._opened.values(), default=header.next_offset)
            entry = AbortedTransaction(TXN_INDEX_VERSION, header.producer_id, first, header.base_offset, stable)
            self._aborted[base].append(entry)

    def judge(
        self,
        found_names: Collection[str],
        out: CheckResult,
        *,
        compacted_before: int,
        is_clean: bool,
        is_checked: Callable[[int], bool],
    ) -> None:
        """Add a finding for each index that is wrong, and its content by the log; ``found_names`` are in the directory.

        ``is_checked(base)`` is true if the index of that segment should be complete. Batches of aborted transactions
        may be gone below ``compacted_before``, and before the first segment: there only the state of a stop that
        ``is_clean`` tells what an index had.
        """
        for base in filter(is_checked, self._bases):
            path = self._path(base, names.TXN_INDEX_SUFFIX)
            content = read_file(self._fs, path) if path.rpartition("/")[2] in found_names else b""
            there = [aborted_transaction(content, number) for number in range(len(content) // TXN_INDEX_ENTRY.size)]
            wanted = self._aborted[base]
            known = [entry for entry in there if entry.first_offset >= max(compacted_before, self._bases[0])]
            exact = [entry for entry in wanted if entry.first_offset >= max(compacted_before, self._bases[0])]
            ends = {(entry.producer_id, entry.last_offset) for entry in there}
            missing = [entry for entry in wanted if (entry.producer_id, entry.last_offset) not in ends]
            rebuilt = b"".join(map(encode_aborted_transaction, wanted))
            said = (out.state.transaction_indexes or {}).get(base) if is_clean else None
            is_as_written = said in {None, (len(content), crc32c(content))} or content == rebuilt
            if is_as_written and known == exact and not missing and not len(content) % TXN_INDEX_ENTRY.size:
                continue
            what = f"does not have the {len(wanted)} transactions that were aborted in its segment"
            out.add(Code.TXN_INDEX_WRONG, path, what)
            out.replace(path, rebuilt, "rebuilt from the log")
            if out.state.transaction_indexes is not None:
                out.state.transaction_indexes[base] = len(rebuilt), crc32c(rebuilt)
                out.plan.saves_state = True

    def _path(self, base: int, suffix: str) -> str:
        return f"{self._directory}/{names.segment_file_name(base, suffix)}"
