# A room is one folder under src/ with its headers under include/octet/<room>/. It is one library and
# links only to the rooms it names, so that a wrong dependency does not build.

add_library(octet_options INTERFACE)
target_compile_options(octet_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-unknown-pragmas
                            -Wimplicit-fallthrough -Wno-missing-field-initializers
                            $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
                            $<$<BOOL:${OCTET_WARNINGS_AS_ERRORS}>:-Werror>>
  # No contraction of a*b+c: a product and a sum round as written, so that the same expression gives
  # the same bits in every kernel that shares it.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -fno-math-errno>)
if(OCTET_SANITIZE)
  list(JOIN OCTET_SANITIZE "," _octet_sanitize)
  # What sanitizers add makes the compiler see uses of uninitialized memory that are none (in Boost's optional).
  target_compile_options(octet_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  target_compile_options(octet_options INTERFACE -fsanitize=${_octet_sanitize} -fno-omit-frame-pointer)
  target_link_options(octet_options INTERFACE -fsanitize=${_octet_sanitize})
  target_compile_definitions(octet_options INTERFACE OCTET_SANITIZED=1)
endif()

# The rooms that have a CUDA side; no other room knows whether there is one.
set(OCTET_ROOMS_WITH_CUDA device ops comm)

# octet_room(NAME USES room... LIBRARIES target...)
function(octet_room name)
  cmake_parse_arguments(ROOM "" "" "USES;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  # What lies in a folder named cuda is the CUDA side of its room, in C++ and CUDA C++.
  if(OCTET_HAVE_CUDA)
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cu)
    list(APPEND sources ${kernels})
  else()
    list(FILTER sources EXCLUDE REGEX "/src/${name}/cuda/")
  endif()
  list(TRANSFORM ROOM_USES PREPEND octet_)
  # Headers of a room are found only by those that link it: each room exports a folder of its own that
  # holds one link to its headers.
  set(view ${CMAKE_BINARY_DIR}/rooms/${name})
  file(MAKE_DIRECTORY ${view}/octet)
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/include/octet/${name} ${view}/octet/${name} SYMBOLIC)
  if(sources)
    add_library(octet_${name} STATIC ${sources})
    target_include_directories(octet_${name} PUBLIC ${view} PRIVATE ${CMAKE_SOURCE_DIR}/src/${name})
    target_link_libraries(octet_${name} PRIVATE octet_options PUBLIC ${ROOM_USES} PRIVATE ${ROOM_LIBRARIES})
    if(OCTET_HAVE_CUDA AND name IN_LIST OCTET_ROOMS_WITH_CUDA)
      target_link_libraries(octet_${name} PRIVATE octet_cuda_options)
    endif()
  else()
    add_library(octet_${name} INTERFACE)
    target_include_directories(octet_${name} INTERFACE ${view})
    target_link_libraries(octet_${name} INTERFACE ${ROOM_USES})
  endif()
endfunction()
