#!/usr/bin/env bash
# mypyc 2.4.1: a module's `Final` tuple whose items are all floats can never be read by a compiled function.
#
# mypyc marks a value that is not set by -113.0, which a float may also be. So a look at such a value asks, beside the
# number, for an error that is pending; for a tuple of floats the two are joined by the wrong operator. The function
# raises NameError, although the name is set, and the same lines run as Python. A tuple with an int or a str among its
# items, and a list, are read as they should be. The compiler says nothing. Issue 1183 of mypyc has it for a name that
# another module imports.
#
# Seen with mypy 2.4.1, setuptools 84.2.1 and CPython 3.11.7 on Linux x86-64:
#     interpreted: 0.25
#     compiled: NameError: value for final name "BOUNDS" was not set
#     compiled, with an int among the items: 0.25
# Exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check mypy==2.4.1 setuptools==84.2.1

write() {
  printf 'from typing import Final\n\nBOUNDS: Final = (%s)\n\n\ndef first() -> float:\n    return BOUNDS[0]\n' "$2" > "$1.py"
}
ask() {
  env/bin/python -c "
import $1
try:
    print($1.first())
except NameError as error:
    print(f'NameError: {error}')"
}

write floats "0.25, 0.5"
write mixed "0.25, 1"
{
  echo "interpreted: $(ask floats)"
  env/bin/mypyc floats.py mixed.py > build.log 2>&1
  rm floats.py mixed.py
  echo "compiled: $(ask floats)"
  echo "compiled, with an int among the items: $(ask mixed)"
} | tee seen
diff - seen <<'END'
interpreted: 0.25
compiled: NameError: value for final name "BOUNDS" was not set
compiled, with an int among the items: 0.25
END
