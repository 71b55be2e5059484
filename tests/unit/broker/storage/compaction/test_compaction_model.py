"""Compaction compared with a simple model: a list of records, a dict of keys, and slow code for the same rules."""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seglog_broker.storage.compaction.offset_map import ENTRY_BYTES
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.records import Record
from tests.cleaning import NOW, RETENTION, Log
from tests.logs import flip_bit
from tests.support import examples

_KEY = st.sampled_from([None, b"", b"a", b"b", b"cc", b"dd", b"eee", b"a long key" * 8])
_VALUE = st.none() | st.sampled_from([b"", b"1", b"22", b"v" * 70])
_HEADERS = st.sampled_from([(), (("h", b"x"),), (("ä", None), ("", b""))])
_TIMESTAMP = st.sampled_from([-1, 0, 5, 1000, 1001, 1 << 40])
_ROW = st.tuples(_TIMESTAMP, _KEY, _VALUE, _HEADERS)


@dataclass(frozen=True)
class _NewBatch:
    rows: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]
    codec: Codec
    append_time: int | None
    gap: int  # offsets left out before it, as an earlier compaction would


_BATCH = st.builds(
    _NewBatch,
    st.lists(_ROW, min_size=1, max_size=5),
    st.sampled_from([Codec.NONE, Codec.NONE, Codec.NONE, *Codec]),
    st.sampled_from([None, None, 7, 1 << 40]),
    st.sampled_from([0, 0, 0, 3]),
)


@dataclass
class _ModelBatch:
    base: int
    last: int
    rows: list[Record]
    horizon: int | None = None
    damaged: bool = False


@dataclass
class _Model:
    batches: list[_ModelBatch] = field(default_factory=list)

    def records(self) -> list[Record]:
        return [row for batch in self.batches if not batch.damaged for row in batch.rows]

    def clean(self, first_dirty: int, bases: list[int], upper: int, bytes_max: int, now: int) -> int:
        """One round over the offsets below ``upper``; returns the new first dirty offset."""
        offsets: dict[bytes, int] = {}
        size, latest, full = 0, first_dirty - 1, False
        for base, next_base in zip(bases, [*bases[1:], upper], strict=True):
            if next_base <= first_dirty or full:
                continue
            for batch in self.batches:
                if batch.damaged or full or not base <= batch.base < next_base or batch.last < first_dirty:
                    continue
                for row in batch.rows:
                    if row.key is None or row.offset < first_dirty:
                        continue
                    if offsets and size + ENTRY_BYTES + len(row.key) > bytes_max:
                        full = True
                        break
                    size += 0 if row.key in offsets else ENTRY_BYTES + len(row.key)
                    offsets[row.key] = latest = row.offset
                if not full:
                    latest = max(latest, batch.last)
            if not full:
                latest = next_base - 1
        left = []
        for batch in self.batches:
            if batch.damaged or batch.base > latest or batch.base >= upper:
                left.append(batch)
                continue
            batch.rows = [row for row in batch.rows if self._stays(batch, row, offsets, latest, now)]
            if not batch.rows:
                batch.horizon = None
            elif batch.horizon is None and any(row.value is None for row in batch.rows):
                batch.horizon = now + RETENTION
            if batch.rows or batch.last + 1 == upper:
                left.append(batch)
        self.batches = left
        return latest + 1

    @staticmethod
    def _stays(batch: _ModelBatch, row: Record, offsets: dict[bytes, int], latest: int, now: int) -> bool:
        if row.offset > latest:
            return True
        if row.key is None or row.offset < offsets.get(row.key, -1):
            return False
        return row.value is not None or batch.horizon is None or now < batch.horizon


def _grow(log: Log, model: _Model, segments: list[list[_NewBatch]]) -> None:
    for batches in segments:
        encoded = []
        offset = log.end
        for new in batches:
            base = offset + new.gap
            offset = base + len(new.rows)
            encoded.append(encode_batch(new.rows, codec=new.codec, base_offset=base, log_append_time=new.append_time))
            rows = [
                Record(base + number, new.append_time or row[0], *row[1:3], tuple(row[3]))
                for number, row in enumerate(new.rows)
            ]
            model.batches.append(_ModelBatch(base, offset - 1, rows))
        log.roll(encoded)


@settings(
    max_examples=examples(250), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.data())
def test_rounds_of_cleaning_leave_what_a_dict_says(data: st.DataObject) -> None:
    log, model = Log(), _Model()
    first_dirty, now = 0, NOW
    for _ in range(data.draw(st.integers(1, 4), "rounds")):
        _grow(
            log,
            model,
            data.draw(st.lists(st.lists(_BATCH, min_size=1, max_size=4), min_size=1, max_size=3), "segments"),
        )
        if data.draw(st.booleans(), "damage"):
            _damage(data, log, model)
        now += data.draw(st.sampled_from([0, 1, RETENTION - 1, RETENTION]), "time")
        bytes_max = data.draw(st.sampled_from([0, 400, 700, 1 << 20]), "map bytes")
        before = list(log.bases)
        expected = model.clean(first_dirty, before, log.end, bytes_max, now)
        result = log.clean(
            first_dirty=first_dirty,
            now_ms=now,
            map_bytes=bytes_max,
            map_load_factor=1.0,
            segment_bytes=data.draw(st.sampled_from([1, 500, 1 << 20]), "segment bytes"),
        )
        assert result.first_dirty == expected
        first_dirty = result.first_dirty
        log.verify()
        assert log.records() == model.records()
        assert [(header.base_offset, header.last_offset, header.delete_horizon) for header, _ in log.batches()] == [
            (batch.base, batch.last, batch.horizon) for batch in model.batches if not batch.damaged
        ]
        assert sum(group.bytes_before - group.bytes_after for group in result.groups) == sum(
            loss.size for loss in result.losses
        )
        assert result.records_read - result.records_kept == sum(loss.records for loss in result.losses)


def _damage(data: st.DataObject, log: Log, model: _Model) -> None:
    """Change the value of one undamaged batch, so that its checksum is wrong."""
    whole = [batch for batch in model.batches if not batch.damaged]
    if not whole:
        return
    chosen = data.draw(st.sampled_from(whole), "damaged batch")
    base = max(base for base in log.bases if base <= chosen.base)
    (place,) = [at + len(batch) - 1 for header, batch, at in log.located(base) if header.base_offset == chosen.base]
    flip_bit(log.fs, log.path(base), place)
    chosen.damaged = True
