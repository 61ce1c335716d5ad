#!/bin/sh
# An agent: a zip archive of Python code behind these lines; `unzip -l` lists what it holds.
file=$0
case $file in */*) ;; *) if [ -f "$file" ]; then file=./$file; else file=$(command -v -- "$file"); fi ;; esac
# Read from a pipe, this doesn't know where it lies: $0 is the shell then.
if [ ! -f "$file" ] || ! IFS= read -r first <"$file" || [ "$first" != '#!/bin/sh' ]; then
  echo "agent: a shell can't read this from its input: copy the file here, whole, and run it." >&2
  exit 1
fi
# An archive ends with a record of 22 bytes that begins with PK.
if command -v tail >/dev/null && { end=$(tail -c 22 "$file"); } 2>/dev/null && [ "${end#PK}" = "$end" ]; then
  echo "agent: $file is incomplete: copy it here again, whole." >&2
  exit 1
fi
# What follows runs the Python that worked before or else the newest on PATH that fits, and says what is missing where
# none does.

fail() {
  echo "agent: $*" >&2
  exit 1
}

# Whether nobody but this user can have written MEMORY, which says what is run.
trusted() {
  [ -f "$1" ] && [ -O "$1" ] && [ ! -h "$1" ] && [ -O "${1%/*}" ] && [ ! -h "${1%/*}" ] &&
    [ -z "$(find "${1%/*}" "$1" -prune \( -perm -020 -o -perm -002 \) 2>&1)" ]
}

# Prints the command that installs a Python which is new enough on this distribution; nothing where none is packaged.
command_here() {
  ID='' ID_LIKE='' VERSION_ID=''
  # shellcheck disable=SC1091 # this machine's
  [ ! -r /etc/os-release ] || . /etc/os-release
  major=${VERSION_ID%%.*}
  case $ID-$major in
    debian-[0-9] | debian-1[01] | ubuntu-1? | ubuntu-20 | ubuntu-21 | centos-7 | rhel-7 | ol-7 | amzn-2) ;;
    alpine-3) case $VERSION_ID in 3.[0-9] | 3.[0-9].* | 3.1[0-5] | 3.1[0-5].*) ;; *) echo apk add python3 ;; esac ;;
    rhel-[89] | centos-[89] | rocky-[89] | almalinux-[89] | ol-[89] | amzn-*) echo dnf install python3.11 ;;
    opensuse-leap-15 | sles-15) echo zypper install python311 ;;
    *)
      for family in $ID $ID_LIKE; do
        case $family in
          debian | ubuntu) echo apt-get install python3 && return ;;
          fedora | rhel | centos) echo dnf install python3 && return ;;
          suse | opensuse | opensuse-* | sles) echo zypper install python3 && return ;;
          alpine) echo apk add python3 && return ;;
          arch) echo pacman -S python && return ;;
        esac
      done
      ;;
  esac
}

# Ends with WHAT is wrong and the command that installs a Python.
lacking() {
  command=$(command_here)
  if [ -n "$command" ]; then fail "$1: install one that fits with \`$command\`."; fi
  fail "$1, and this system has no such package that is known here: install Python @OLDEST@ to @NEWEST@."
}

# The state folder, as the command line will read it.
state=${AGENT_STATE:-/var/lib/mesh-agent} before=''
for word; do
  if [ "$before" = --state ]; then state=${word:-$state}; fi
  case $word in --) break ;; --state=?*) state=${word#--state=} ;; esac
  before=$word
done

python='' how=remembered
for memory in "$state/runtime/python" "${XDG_CACHE_HOME:-${HOME-}/.cache}/mesh-agent/python"; do
  if trusted "$memory" && IFS= read -r python <"$memory" && [ -f "$python" ] && [ -x "$python" ]; then break; fi
  python=''
done

if [ -z "$python" ]; then
  how=searched unfit=''
  set -f
  # By name first, and for each name along all of PATH: a version manager's shim may be there and not work.
  for name in @NAMES@ python3; do
    IFS=:
    for folder in $PATH; do
      IFS=' '
      if [ -z "$folder" ] || [ ! -f "$folder/$name" ] || [ ! -x "$folder/$name" ]; then continue; fi
      said=$("$folder/$name" -I -S -X agent=probe "$file" </dev/null 2>/dev/null)
      case $said in
        'fit /'*) python=${said#fit } && break 2 ;;
        'lacks '* | 'unfit '*) unfit=${unfit:-$said} ;;
      esac
    done
    IFS=' '
  done
  case $python,$unfit in
    ,lacks*) lacking "${unfit#lacks }" ;;
    ,unfit*) fail "${unfit#unfit }" ;;
    ,) lacking "this needs Python @OLDEST@ or newer, and there is none on PATH that works" ;;
  esac
fi
# This is the last line that the shell reads.
exec "$python" -I -S -X "agent=$how" "$file" "$@"
