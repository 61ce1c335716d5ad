#!/usr/bin/env bash
# Builds the one file, and runs the tests; see `./build.sh --help`.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Servers' programs lie where only root's PATH leads.
export PATH="$PATH:/usr/sbin:/sbin"
# Nothing of the moment gets into what is built, so nothing is to ask for one.
unset SOURCE_DATE_EPOCH
# What the file runs on, whatever it is built on: CPython's minor versions, machines, and the C libraries that wheels name.
pythons='10 11 12 13 14' machines='x86_64 aarch64' libraries='manylinux musllinux'

usage() {
  cat <<'TEXT'
usage: ./build.sh [--bundle DIR] [-o FILE]   build the agent: one executable file (dist/agent)
       ./build.sh test [PYTEST ARGUMENTS]    run every test and linter
       ./build.sh bench [ARGUMENTS]          build, then print the benchmarks

  --bundle DIR   the bundle that the file carries: bundle.toml and blobs/ (agent/bundles/native)
  -o FILE        where the file goes (dist/agent); its digest is put into SHA256SUMS beside it

Needs Python 3.10 or newer. On Debian and Ubuntu, as root, what else is missing is installed with apt-get.
PYTHON names the Python to build with.
TEXT
}

fail() {
  echo "build.sh: $*" >&2
  exit 1
}

# Installs Debian packages without letting any of them start a daemon.
install_packages() {
  local wanted=("$@") policy=/usr/sbin/policy-rc.d kept=''
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    fail "this needs ${wanted[*]} (Debian's names): install what is missing, as with \`apt-get install ${wanted[*]}\`."
  fi
  if [ -e "$policy" ]; then
    kept=$(mktemp -p "$(dirname "$policy")" policy-rc.d.XXXXXX)
    mv "$policy" "$kept"
    # shellcheck disable=SC2064 # the names are those of now
    trap "mv '$kept' '$policy'" EXIT
  else
    # shellcheck disable=SC2064
    trap "rm -f '$policy'" EXIT
  fi
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  echo "installing ${wanted[*]}"
  {
    apt-get update -qq &&
      DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${wanted[@]}"
  } >"$here/build/apt.log" 2>&1 </dev/null ||
    fail "apt-get could not install ${wanted[*]}; build/apt.log ends with: $(tail -n 3 "$here/build/apt.log")"
  if [ -n "$kept" ]; then mv "$kept" "$policy"; else rm -f "$policy"; fi
  trap - EXIT
}

# Prints the Python to build with, or nothing.
find_python() {
  local name
  for name in ${PYTHON:-/usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
}

# Makes build/NAME, a virtual environment that holds exactly what the lock file LOCK lists; one at a time.
make_environment() (
  local folder=$here/build/$1 lock=$here/$2 python stamp
  python=$(find_python)
  [ -n "$python" ] || fail "no Python 3.10 or newer is here: install one (Debian 12: apt-get install python3-venv)."
  exec 9>"$here/build/lock"
  flock 9
  stamp="$("$python" -c 'import sys; print(sys.version, sys.base_prefix)') $(sha256sum <"$lock")"
  if [ "$(cat "$folder/stamp" 2>/dev/null)" = "$stamp" ]; then return; fi
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    install_packages python3-venv
  fi
  echo "making build/$1 with what $2 lists"
  rm -rf "$folder"
  "$python" -m venv "$folder" || fail "$python could not make a virtual environment in $folder."
  install_python "$folder" --require-hashes -r "$lock"
  echo "$stamp" >"$folder/stamp"
)

# Runs pip of the environment FOLDER, quietly unless it fails.
install_python() {
  local folder=$1
  shift
  "$folder/bin/python" -m pip --disable-pip-version-check install --quiet --no-warn-script-location \
    --root-user-action ignore "$@" >"$here/build/pip.log" 2>&1 ||
    fail "pip could not install what is needed; build/pip.log ends with: $(tail -n 5 "$here/build/pip.log")"
}

# Prints what requirements.lock lists of the packages NAMES (as in 'cffi|pynacl').
locked() {
  awk -v names="^($1)==" '/^[a-z]/ { on = $0 ~ names } on' "$here/requirements.lock"
}

# Puts the wheels that the file carries into build/wheels: PACKAGES as LIST has them, for what OPTIONS say of the target.
download() (
  local list=$1 log=$1.log
  shift
  cd "$here/build/wheels.part"
  "$here/build/tools/bin/python" -m pip --disable-pip-version-check download --quiet --no-deps --only-binary :all: \
    --require-hashes -r "$list" "$@" >"$log" 2>&1 || fail "pip found no wheel ($*): $(tail -n 3 "$log")"
)

# Makes build/wheels: of every package a wheel for each target, asked for by its tags, never by what this machine is.
fetch_wheels() (
  local folder=$here/build/wheels part=$here/build/wheels.part stamp work minor machine library
  exec 9>"$here/build/lock"
  flock 9
  stamp="$(sha256sum <"$here/requirements.lock") $pythons $machines $libraries"
  if [ "$(cat "$folder/stamp" 2>/dev/null)" = "$stamp" ]; then return; fi
  echo "fetching the wheels of every platform into build/wheels"
  rm -rf "$folder" "$part"
  mkdir "$part"
  work=$(mktemp -d "$here/build/lists.XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  locked 'pika|tomli' >"$work/pure"
  download "$work/pure" --platform any --implementation py --abi none --python-version 3.10
  for minor in $pythons; do
    for machine in $machines; do
      local jobs=()
      for library in $libraries; do
        local list=$work/native-$minor-$machine-$library tags=()
        locked 'cffi|pynacl' >"$list"
        case $library in
          manylinux) tags=(--platform "manylinux_2_17_$machine" --platform "manylinux2014_$machine") ;;
          musllinux) tags=(--platform "musllinux_1_2_$machine" --platform "musllinux_1_1_$machine") ;;
        esac
        download "$list" "${tags[@]}" --implementation cp --python-version "3.$minor" --abi "cp3$minor" --abi abi3 &
        jobs+=($!)
      done
      for library in "${jobs[@]}"; do wait "$library" || exit 1; done
    done
  done
  echo "$stamp" >"$part/stamp"
  mv "$part" "$folder"
)

commit() {
  local name
  name=$(git -C "$here" rev-parse --verify --quiet HEAD 2>/dev/null) || { echo unknown; return; }
  if [ -n "$(git -C "$here" status --porcelain 2>/dev/null)" ]; then name=$name-dirty; fi
  echo "$name"
}

build() {
  local bundle=$here/agent/bundles/native output=$here/dist/agent work
  while [ $# -gt 0 ]; do
    case $1 in
      --bundle) [ $# -ge 2 ] || fail "--bundle needs a folder."; bundle=$2; shift 2 ;;
      --bundle=*) bundle=${1#*=}; shift ;;
      -o | --output) [ $# -ge 2 ] || fail "$1 needs a file."; output=$2; shift 2 ;;
      --output=*) output=${1#*=}; shift ;;
      *) fail "unknown argument $1; see ./build.sh --help." ;;
    esac
  done
  make_environment tools .ci/build-requirements.lock
  fetch_wheels
  mkdir -p "$(dirname "$output")"
  # Built in a copy, so that nothing of an earlier build gets in and nothing is left among the sources.
  work=$(mktemp -d "$here/build/work.XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  mkdir "$work/source"
  cp -R "$here/agent" "$here/pyproject.toml" "$here/LICENSE" "$work/source/"
  find "$work/source" -name __pycache__ -prune -exec rm -rf {} +
  install_python "$here/build/tools" --target "$work/site-packages" --no-compile --no-deps --no-index \
    "$here"/build/wheels/*-none-any.whl
  install_python "$here/build/tools" --target "$work/site-packages" --no-compile --no-deps --no-build-isolation \
    "$work/source"
  "$here/build/tools/bin/shiv" --site-packages "$work/site-packages" --entry-point agent.cli:main --reproducible \
    --output-file "$work/shiv.pyz" >"$work/shiv.log" 2>&1 || fail "shiv failed: $(tail -n 3 "$work/shiv.log")"
  (cd "$here" && "$here/build/tools/bin/python" -m agent.assemble --shiv "$work/shiv.pyz" \
    --wheels build/wheels --lock requirements.lock --bundle "$(cd "$OLDPWD" && realpath -m "$bundle")" --output "$(cd "$OLDPWD" && realpath -m "$output")" \
    --commit "$(commit)")
  rm -rf "$work"
  trap - EXIT
  write_sum "$output"
}

# Puts the digest of FILE into SHA256SUMS beside it, for `sha256sum -c`.
write_sum() (
  local name sums
  cd "$(dirname "$1")"
  name=$(basename "$1") sums=''
  if [ -f SHA256SUMS ]; then sums=$(awk -v name="$name" 'substr($0, 67) != name' SHA256SUMS); fi
  printf '%s\n' ${sums:+"$sums"} "$(sha256sum "$name")" >SHA256SUMS.part
  mv SHA256SUMS.part SHA256SUMS
)

test_all() {
  local missing=() pair
  for pair in openssl:openssl shellcheck:shellcheck rabbitmq-server:rabbitmq-server ps:procps setfattr:attr git:git \
    ss:iproute2 strace:strace podman:podman runc:runc dockerd:docker.io debootstrap:debootstrap \
    busybox:busybox-static qemu-aarch64-static:qemu-user-static readelf:binutils rpmbuild:rpm dnf:dnf zypper:zypper \
    createrepo_c:createrepo-c; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
  done
  if [ ${#missing[@]} -gt 0 ]; then install_packages "${missing[@]}"; fi
  make_environment tests tests/requirements.lock
  cd "$here"
  exec build/tests/bin/python -m pytest -p tests.no_skips "$@"
}

bench() {
  make_environment tests tests/requirements.lock
  build
  cd "$here"
  exec build/tests/bin/python -m tests.bench "$@"
}

mkdir -p "$here/build"
case ${1-} in
  -h | --help | help) usage ;;
  test) shift; test_all "$@" ;;
  bench) shift; bench "$@" ;;
  *) build "$@" ;;
esac
