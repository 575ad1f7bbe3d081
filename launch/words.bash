# Messages of the scripts in launch/. Sourced.

# Puts a text into REPLY, with control characters as escapes (\x1B): a terminal would obey them.
escape() { # text
  local LC_ALL=C rest=$1 plain char
  REPLY=''
  while plain=${rest%%[$'\001'-$'\010'$'\012'-$'\037\177\302']*} && [ "$plain" != "$rest" ]; do
    REPLY+=$plain char=${rest:${#plain}:1} rest=${rest:${#plain}+1}
    if [ "$char" != $'\302' ]; then
      printf -v char '\\x%02X' "'$char"
    elif [[ $rest == [$'\200'-$'\237']* ]]; then # U+0080 to U+009F
      char="\\x$(printf %s "${rest:0:1}" | od -An -tx1 | tr -d ' ' | tr a-f A-F)" rest=${rest:1}
    fi
    REPLY+=$char
  done
  REPLY+=$rest
}
# Prints a line. Names and values in it may hold any character.
tell() { # text...
  escape "$*"
  printf '%s\n' "$REPLY"
}

# Prints an error and returns 64.
refused() { # what, expected, found, where, what to do
  tell "error: $1" >&2
  tell "  expected: $2" >&2
  tell "  found:    $3" >&2
  tell "  where:    $4" >&2
  tell "  to do:    $5" >&2
  return 64
}

is_count() { # text
  case $1 in '' | 0* | *[!0-9]*) return 1 ;; esac
  [ ${#1} -le 7 ]
}
