"""The mount of a directory, and how its kind and options are judged."""

from seglog.cli.checkups.machine import Mount, mount_checks, mount_of
from seglog.cli.checkups.model import Verdict
from tests.support import each_case

MOUNTINFO = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
25 22 0:22 / /proc rw,nosuid - proc proc rw
40 22 8:1 / /data rw,noatime shared:1 master:2 - xfs /dev/sdb1 rw,attr2
41 40 0:40 / /data/nfs rw - nfs4 files.example:/logs rw,vers=4.2
42 22 8:2 / /with\040blank rw - ext4 /dev/sdc1 rw,barrier=0
43 22 8:3 / /data2 rw - ext4 /dev/sdd1 rw
44 40 0:41 / /data/nfs rw - tmpfs covers rw
not a mount
"""


@each_case(
    ("path", "place", "kind"),
    [
        ("/srv/logs", "/", "ext4"),
        ("/data", "/data", "xfs"),
        ("/data/a/b", "/data", "xfs"),
        ("/data/nfs/a", "/data/nfs", "tmpfs"),
        ("/data2/a", "/data2", "ext4"),
        ("/data22", "/", "ext4"),
        ("/with blank/a", "/with blank", "ext4"),
    ],
)
def test_the_mount_is_the_nearest_above_and_the_last_at_its_place(path: str, place: str, kind: str) -> None:
    mount = mount_of(path, MOUNTINFO)
    assert mount is not None
    assert (mount.place, mount.kind) == (place, kind)


def test_without_a_mount_none_is_found() -> None:
    assert mount_of("/data", "") is None


@each_case(
    ("kind", "options", "disk", "mounted"),
    [
        ("ext4", "rw,relatime", Verdict.OK, Verdict.OK),
        ("xfs", "rw", Verdict.OK, Verdict.OK),
        ("tmpfs", "rw", Verdict.PROBLEM, Verdict.OK),
        ("nfs4", "rw", Verdict.WARNING, Verdict.OK),
        ("fuse.sshfs", "rw", Verdict.WARNING, Verdict.OK),
        ("overlay", "rw", Verdict.WARNING, Verdict.OK),
        ("ext4", "ro", Verdict.OK, Verdict.PROBLEM),
        ("ext4", "rw,barrier=0", Verdict.OK, Verdict.PROBLEM),
        ("xfs", "rw,nobarrier", Verdict.OK, Verdict.PROBLEM),
        ("ext4", "rw,sync", Verdict.OK, Verdict.WARNING),
        ("ext4", "rw,strictatime", Verdict.OK, Verdict.WARNING),
    ],
)
def test_kinds_and_options_are_judged(kind: str, options: str, disk: Verdict, mounted: Verdict) -> None:
    checks = list(mount_checks("/data", Mount("/", kind, "/dev/x", frozenset(options.split(",")))))
    assert [check.verdict for check in checks] == [disk, mounted]
    assert all(check.remedy for check in checks if check.verdict is not Verdict.OK)
    if mounted is not Verdict.OK:
        wrong = options.rpartition(",")[2]
        instead = {"ro": "rw", "sync": "async", "strictatime": "noatime"}.get(wrong, "")
        assert (instead or f"without {wrong}") in checks[1].remedy
        _, again = mount_checks("/data", Mount("/", kind, "/dev/x", frozenset({"rw", instead})))
        assert again.verdict is Verdict.OK
