"""Processes that check records and recompress batches give the answers of the loop, and end with their owner."""

import os
import signal

import pytest

from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.log.batch_checks import check_records
from seglog_broker.storage.log.recompression import Recompression, recompress
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.errors import OutOfResourcesError, SeglogError
from seglog_protocol.record_batch import parse_header
from tests.processes import workers
from tests.unit.broker.workers.test_recompressor import CODECS, KEYLESS, MIB, NOW
from tests.unit.broker.workers.test_record_checker import DATED, KEYED, bomb, view


async def test_a_process_gives_the_same_answer_as_the_loop_and_ends_with_its_owner() -> None:
    offload = Offload()
    async with offload.ending_processes():
        await offload.check_records(view(bomb()), KEYED)
        for batch, rules in ((bomb(None), KEYED), (encode_batch([(7, b"k", bytes(50_000), ())]), DATED)):
            with pytest.raises(SeglogError) as here:
                check_records(parse_header(batch), view(batch), rules)
            with pytest.raises(type(here.value)) as there:
                await offload.check_records(view(batch), rules)
            assert (there.value.message, there.value.facts) == (here.value.message, here.value.facts)
        assert len(workers("record_checker")) == 1, "one for all of them"
    assert workers("record_checker") == []


@pytest.mark.parametrize("source", CODECS)
async def test_a_process_makes_the_same_batch_as_the_loop(source: Codec) -> None:
    batch = view(encode_batch([(NOW, b"k", os.urandom(MIB) + bytes(MIB), ())], codec=source))
    offload = Offload()
    async with offload.ending_processes():
        for target in CODECS:
            wanted = Recompression(target, None, 4 * MIB)
            new = await offload.recompress(batch, wanted, None)
            assert new == recompress(parse_header(batch), batch, wanted)
        assert len(workers("recompressor")) == 1, "one for all of them"
    assert workers("recompressor") == []


async def test_a_process_refuses_what_the_loop_refuses() -> None:
    large = view(encode_batch([(NOW, b"k", bytes(8 * MIB), ())], codec=Codec.GZIP))
    offload = Offload()
    async with offload.ending_processes():
        for batch, wanted in (
            (large, Recompression(Codec.LZ4, 9, 20_000)),
            (large, Recompression(Codec.NONE, None, MIB)),
        ):
            with pytest.raises(SeglogError) as here:
                recompress(parse_header(batch), batch, wanted)
            with pytest.raises(type(here.value)) as there:
                await offload.recompress(batch, wanted, None)
            assert (there.value.message, there.value.facts) == (here.value.message, here.value.facts)
        wide = Recompression(Codec.LZ4, 9, MIB)
        assert parse_header(await offload.recompress(large, wide, KEYED)).codec is Codec.LZ4
        with pytest.raises(SeglogError, match="record 0 has no key"):
            await offload.recompress(view(KEYLESS), wide, KEYED)
        [process] = workers("recompressor")
        os.kill(process, signal.SIGKILL)
        with pytest.raises(OutOfResourcesError, match="recompressor ended with status -9") as raised:
            await offload.recompress(large, wide, None)
        assert raised.value.retriable
        await offload.recompress(large, wide, None)
