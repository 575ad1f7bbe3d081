# octet_discover_suites(TARGET PREFIX [LABEL label] [PROPERTIES property value...]): makes each suite of a
# GoogleTest program one ctest test, named PREFIX and the suite. A suite creates its fixtures once in its
# process; a process per TEST would create them again each time. The program lists its suites after each link.
# The names of suites that cover a whole matrix begin with Whole. They get the label `release`. A smaller part
# of a matrix belongs in another suite.
#
# As a script (cmake -P): writes the tests of PROGRAM into the file TO.
if(CMAKE_SCRIPT_MODE_FILE)
  execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listed RESULT_VARIABLE code TIMEOUT 60)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${PROGRAM} --gtest_list_tests ended with ${code}; run it by hand to see why.")
  endif()
  string(REGEX MATCHALL "(^|\n)[A-Za-z0-9_/]+\\.( |\n|$)?" suites "${listed}")
  list(TRANSFORM suites REPLACE "[ \n.]" "")
  list(REMOVE_DUPLICATES suites)
  set(tests "")
  foreach(suite IN LISTS suites)
    if(suite MATCHES "DISABLED_")
      continue()
    endif()
    # ctest adds a second value of LABELS to the first one, so each test has one.
    set(label "${LABEL}")
    if(suite MATCHES "^Whole")
      set(label release)
    endif()
    string(APPEND tests "add_test([=[${PREFIX}${suite}]=] [=[${PROGRAM}]=] [=[--gtest_filter=${suite}.*]=])\n"
                        "set_tests_properties([=[${PREFIX}${suite}]=] PROPERTIES LABELS [=[${label}]=] ${PROPERTIES})\n")
  endforeach()
  file(WRITE ${TO} "${tests}")
  return()
endif()

set(_octet_suites_script ${CMAKE_CURRENT_LIST_FILE})

function(octet_discover_suites target prefix)
  cmake_parse_arguments(SUITES "" "LABEL" "PROPERTIES" ${ARGN})
  set(properties TIMEOUT 600 WORKING_DIRECTORY "\"${CMAKE_CURRENT_BINARY_DIR}\"" ${SUITES_PROPERTIES})
  list(JOIN properties " " properties)
  set(tests ${CMAKE_CURRENT_BINARY_DIR}/${target}_suites.cmake)
  add_custom_command(TARGET ${target} POST_BUILD BYPRODUCTS ${tests}
                     COMMAND ${CMAKE_COMMAND} -D PROGRAM=$<TARGET_FILE:${target}> -D PREFIX=${prefix} -D "LABEL=${SUITES_LABEL}"
                             -D "PROPERTIES=${properties}" -D TO=${tests} -P ${_octet_suites_script}
                     VERBATIM)
  # A program that is not built has one test, NOT_BUILT.
  set(include ${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake)
  file(WRITE ${include} "if(EXISTS \"${tests}\")\n  include(\"${tests}\")\nelse()\n  add_test(${prefix}NOT_BUILT NOT_BUILT)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${include})
endfunction()
