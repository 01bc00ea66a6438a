# Sourced by the other scripts: finds or makes the Python environment that they run in.
#
# PYTHON            the interpreter to use (otherwise the first of python3, python3.13, python3.12, python3.11 that will do)
# MESHWRIGHT_VENV   the environment's folder (otherwise .venv), so that several Python versions can stand side by side

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${MESHWRIGHT_VENV:-$root/.venv}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# version_of INTERPRETER: prints its version, such as 3.12, or nothing when it does not run or is not supported.
version_of() {
  "$1" -c 'import sys; v = sys.version_info; print("%d.%d" % v[:2] if (3, 11) <= v < (3, 14) else "")' 2>/dev/null || true
}

find_python() {
  local candidate candidates=(python3 python3.13 python3.12 python3.11)
  if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
  for candidate in "${candidates[@]}"; do
    if [ -n "$(version_of "$candidate")" ]; then
      echo "$candidate"
      return
    fi
  done
  die "no Python 3.11, 3.12 or 3.13 (tried: ${candidates[*]}). Install one, or name it: PYTHON=/path/to/python3.12 $0"
}

make_env() {
  local python version clear=()
  python=$(find_python)
  version=$(version_of "$python")
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$python cannot make environments. Install its venv module (Debian, Ubuntu: python$version-venv)."
  if [ -f "$venv/pyvenv.cfg" ]; then clear=(--clear); fi
  echo "making $venv with Python $version"
  "$python" -m venv ${clear[@]+"${clear[@]}"} "$venv"
}

# ensure_env [EXTRA]: puts on PATH an environment with this checkout installed (editable), and its optional
# dependencies EXTRA. Installs only what is new: pyproject.toml, the Python version or the checkout's place.
ensure_env() {
  local extra=${1:-} version stamp
  version=$(version_of "$venv/bin/python")
  if [ -z "$version" ] || [ ! -x "$venv/bin/pip" ] || [ "$(version_of "${PYTHON:-$venv/bin/python}")" != "$version" ]; then
    make_env
    version=$(version_of "$venv/bin/python")
  fi
  export PATH="$venv/bin:$PATH"

  stamp="$version $(cksum <"$root/pyproject.toml") $root"
  if [ "$(cat "$venv/installed${extra:+-$extra}" 2>/dev/null)" = "$stamp" ]; then return; fi
  echo "installing meshwright${extra:+[$extra]} into $venv (a minute or two)"
  pip install --quiet --quiet --disable-pip-version-check --editable "$root${extra:+[$extra]}"
  echo "$stamp" | tee "$venv/installed" "$venv/installed${extra:+-$extra}" >/dev/null
}
