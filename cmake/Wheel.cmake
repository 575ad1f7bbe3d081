# octet_fetch_wheel(PACKAGE VERSION SHA256 PLATFORM FOLDER PATTERNS pattern...)
# Fetches headers from a PyPI wheel: pip downloads the wheel, its hash is checked, and files that match the
# patterns are kept in FOLDER of the source tree. FOLDER is either complete or missing. Afterwards
# octet_wheel_error is empty, or has pip's message.
function(octet_fetch_wheel package version sha256 platform folder)
  cmake_parse_arguments(WHEEL "" "" "PATTERNS" ${ARGN})
  find_program(OCTET_PYTHON python3)
  mark_as_advanced(OCTET_PYTHON)
  if(NOT OCTET_PYTHON)
    set(octet_wheel_error "There is no python3." PARENT_SCOPE)
    return()
  endif()
  set(fresh ${folder}.part)
  file(REMOVE_RECURSE ${fresh})
  file(MAKE_DIRECTORY ${fresh})
  file(WRITE ${fresh}/requirements.txt "${package}==${version} --hash=sha256:${sha256}\n")
  # Any CPython version works: all wheels of a version have the same headers.
  execute_process(
    COMMAND ${OCTET_PYTHON} -m pip download --quiet --disable-pip-version-check --no-deps
            --only-binary=:all: --implementation cp --python-version 3.12 --platform ${platform}
            --require-hashes --requirement ${fresh}/requirements.txt --dest ${fresh}
    RESULT_VARIABLE code ERROR_VARIABLE error)
  file(GLOB wheel ${fresh}/*.whl)
  if(NOT code EQUAL 0 OR NOT wheel)
    file(REMOVE_RECURSE ${fresh})
    set(octet_wheel_error "${error}" PARENT_SCOPE)
    return()
  endif()
  file(ARCHIVE_EXTRACT INPUT ${wheel} DESTINATION ${fresh} PATTERNS ${WHEEL_PATTERNS})
  file(REMOVE ${wheel})
  file(REMOVE_RECURSE ${folder})
  file(RENAME ${fresh} ${folder})
  set(octet_wheel_error "" PARENT_SCOPE)
endfunction()
