# Several sources as one, so that the headers that they share are read, and their templates compiled, once. What a source
# keeps to itself in an unnamed namespace stays its own: there it gets a namespace named after the source, and sources
# whose helpers share a name go together. A helper with the name of something that a header of the room declares hides
# that from the sources behind: give it another name. Messages and debuggers name the source and its line.
#
# octet_join(RESULT NAME SIZE source...): RESULT becomes the files that stand for the sources, SIZE in each at most. They
# are written by the configuration, which runs again where a source has changed: a command of the build would have to
# wait for the libraries that the sources are linked with.
function(octet_join result name size)
  set(joined)
  list(LENGTH ARGN sources)
  if(sources EQUAL 0)
    set(${result} "" PARENT_SCOPE)
    return()
  endif()
  # As many as are needed, of even sizes.
  set(taken 0)
  math(EXPR files "(${sources} + ${size} - 1) / ${size}")
  math(EXPR last "${files} - 1")
  foreach(i RANGE ${last})
    math(EXPR first "${i} * ${sources} / ${files}")
    math(EXPR number "(${i} + 1) * ${sources} / ${files} - ${first}")
    list(SUBLIST ARGN ${first} ${number} some)
    list(LENGTH some number)
    math(EXPR taken "${taken} + ${number}")
    set(all "")
    foreach(source IN LISTS some)
      get_filename_component(own ${source} NAME_WE)
      string(MAKE_C_IDENTIFIER "of_${own}" own)
      file(READ ${source} text)
      string(REPLACE "\nnamespace {\n" "\nnamespace { namespace ${own} {\n" text "${text}")
      string(REPLACE "\n}  // namespace\n" "\n} using namespace ${own}; }\n" text "${text}")
      string(APPEND all "#line 1 \"${source}\"\n${text}\n")
    endforeach()
    set(to ${CMAKE_CURRENT_BINARY_DIR}/joined/${name}_${i}.cc)
    set(before "")
    if(EXISTS ${to})
      file(READ ${to} before)
    endif()
    if(NOT "${all}" STREQUAL "${before}")
      file(WRITE ${to} "${all}")
    endif()
    # A source may name what lies beside it.
    list(TRANSFORM some REPLACE "/[^/]*$" "" OUTPUT_VARIABLE folders)
    list(REMOVE_DUPLICATES folders)
    set_source_files_properties(${to} PROPERTIES INCLUDE_DIRECTORIES "${folders}")
    list(APPEND joined ${to})
  endforeach()
  if(NOT taken EQUAL sources)
    message(FATAL_ERROR "${name}: of ${sources} sources ${taken} were joined")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
  set(${result} ${joined} PARENT_SCOPE)
endfunction()
