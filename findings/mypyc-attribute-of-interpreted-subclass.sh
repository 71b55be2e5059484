#!/usr/bin/env bash
# mypyc 2.4.1: a compiled class does not see an attribute that an interpreted subclass gives its own value.
#
# `@mypyc_attr(allow_interpreted_subclasses=True)` is for classes that others inherit from without compiling. Methods
# that such a subclass overrides are called by the compiled base. But an attribute with a default in the body of the
# base is a field of each object there: its compiled methods read the field, and the value in the body of the subclass
# is passed over. Whoever asks from outside, the methods of the subclass too, sees its own value. Nothing is said when
# it is compiled, when the subclass is made, or when it runs. A subclass that sets `self.batch_size` in `__init__` is
# read as it should be. Pull request 21013 of mypy, open since March 2026, is about it.
#
# Seen with mypy 2.4.1, mypy_extensions 1.1.0, setuptools 84.2.1 and CPython 3.11.7 on Linux x86-64:
#     interpreted: from outside 10, in the base's method 10, by a method that it overrides 10
#     compiled: from outside 10, in the base's method 100, by a method that it overrides 10
# Exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check mypy==2.4.1 mypy_extensions==1.1.0 setuptools==84.2.1

cat > base.py <<'END'
from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Reader:
    batch_size: int = 100

    def size(self) -> int:
        return self.batch_size

    def limit(self) -> int:
        return 100

    def asked(self) -> int:
        return self.limit()
END
cat > subclass.py <<'END'
from base import Reader


class Small(Reader):
    batch_size = 10

    def limit(self) -> int:
        return 10


small = Small()
print(f"from outside {small.batch_size}, in the base's method {small.size()}, by a method that it overrides {small.asked()}")
END
{
  echo "interpreted: $(env/bin/python subclass.py)"
  env/bin/mypyc base.py > build.log 2>&1
  rm base.py
  echo "compiled: $(env/bin/python subclass.py)"
} | tee seen
diff - seen <<'END'
interpreted: from outside 10, in the base's method 10, by a method that it overrides 10
compiled: from outside 10, in the base's method 100, by a method that it overrides 10
END
