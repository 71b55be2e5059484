"""Records as a data frame of pandas, which is installed with Spark."""

from typing import Any, Final

import pytest

import seglog
from seglog_protocol.batch_builder import encode_batch
from tests.unit.clients.fake_broker import fake_broker

PANDAS: Final[Any] = pytest.importorskip("pandas", reason="pandas: it comes with Spark")


def test_records_become_a_data_frame() -> None:
    with fake_broker() as broker:
        broker.logs["t"][0].append(encode_batch([(n * 1000, None, b"%d" % n, ()) for n in range(7)]))
        frame = seglog.read_arrow(broker.address, "t", columns=["value", "timestamp"]).read_pandas()
    assert isinstance(frame, PANDAS.DataFrame)
    assert frame["value"].tolist() == [b"%d" % n for n in range(7)]
    assert frame["timestamp"].dt.second.tolist() == list(range(7))
