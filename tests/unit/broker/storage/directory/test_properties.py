"""Java's properties format, as in ``meta.properties``."""

from seglog_broker.storage.directory.identity import decode_properties


def test_comments_and_blank_lines_are_passed_over() -> None:
    text = b"#\n#Sat Nov 21 03:26:57 UTC 2026\nnode.id=1\n\n! also one\nversion=1\r\ncluster.id = IVT1\n nothing\n"
    assert decode_properties(text) == {"node.id": "1", "version": "1", "cluster.id": "IVT1"}


def test_bytes_that_are_no_text_do_no_harm() -> None:
    assert decode_properties(b"a=\xff\nb:2") == {"a": "\ufffd", "b": "2"}
