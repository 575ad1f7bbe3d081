# A room is a module: a folder under src/ with its headers under include/octet/<room>/. It is one library and
# links only the rooms that it names. tests/rooms/walls compares the named rooms with the included headers.

add_library(octet_options INTERFACE)
target_compile_options(octet_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-unknown-pragmas
                            -Wimplicit-fallthrough -Wno-missing-field-initializers
                            $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
                            $<$<BOOL:${OCTET_WARNINGS_AS_ERRORS}>:-Werror>>
  # No contraction of a*b+c: a product and a sum are rounded separately. The same expression then gives the
  # same bits in every kernel that shares it.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -fno-math-errno>)
# Flow analysis warnings of newer compilers vary between versions. They are often wrong about inlined code of
# the standard library. (GCC 13 sees a growing vector write out of bounds.) They are shown, but are not
# errors.
if(OCTET_WARNINGS_AS_ERRORS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  foreach(warning array-bounds dangling-pointer dangling-reference free-nonheap-object maybe-uninitialized nonnull null-dereference
                  stringop-overflow stringop-overread use-after-free)
    target_compile_options(octet_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-error=${warning}>
                                                   $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wno-error=${warning}>)
  endforeach()
endif()
if(OCTET_SANITIZE)
  list(JOIN OCTET_SANITIZE "," _octet_sanitize)
  # With sanitizers the compiler wrongly warns of uninitialized memory (in Boost's optional).
  target_compile_options(octet_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  target_compile_options(octet_options INTERFACE -fsanitize=${_octet_sanitize} -fno-omit-frame-pointer)
  target_link_options(octet_options INTERFACE -fsanitize=${_octet_sanitize})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 17)
    # These versions cannot mark coroutines with the types of their functions.
    target_compile_options(octet_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=function>)
  endif()
  target_compile_definitions(octet_options INTERFACE OCTET_SANITIZED=1)
endif()

# The rooms with CUDA sources. Other rooms do not depend on CUDA.
set(OCTET_ROOMS_WITH_CUDA device ops comm)

# The rooms with loops over values, bytes or text. Other rooms are compiled with -O1, which takes a third less
# time.
set(OCTET_HOT_ROOMS base device ops comm optim text data weights checkpoint memory_tier)

# octet_room(NAME EXPORTS room... USES room... LIBRARIES target...)
# EXPORTS: rooms that its public headers include; rooms that link it see their headers, too.
# USES: rooms that only its own sources include.
function(octet_room name)
  cmake_parse_arguments(ROOM "" "" "EXPORTS;USES;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  # A folder named cuda has the CUDA sources of its room, in C++ and CUDA C++. A file named no_cuda.cc replaces
  # them in builds without CUDA.
  if(OCTET_HAVE_CUDA)
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cu)
    list(APPEND sources ${kernels})
    list(FILTER sources EXCLUDE REGEX "/no_cuda\\.cc$")
  else()
    list(FILTER sources EXCLUDE REGEX "/src/${name}/cuda/")
  endif()
  list(TRANSFORM ROOM_EXPORTS PREPEND octet_)
  list(TRANSFORM ROOM_USES PREPEND octet_)
  # Only rooms that link a room find its headers: each room exports its own folder with one link to them.
  set(view ${PROJECT_BINARY_DIR}/rooms/${name})
  file(MAKE_DIRECTORY ${view}/octet)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/include/octet/${name} ${view}/octet/${name} SYMBOLIC)
  if(sources)
    add_library(octet_${name} STATIC ${sources})
    if(NOT name IN_LIST OCTET_HOT_ROOMS)
      target_compile_options(octet_${name} PRIVATE $<$<CONFIG:Release>:-O1>)
    endif()
    if(OCTET_UNITY)
      set_target_properties(octet_${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
      # In unity builds GCC treats included sources as headers and warns of types without linkage in them.
      target_compile_options(octet_${name} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
    endif()
    target_include_directories(octet_${name} PUBLIC $<BUILD_INTERFACE:${view}> PRIVATE ${PROJECT_SOURCE_DIR}/src/${name})
    target_link_libraries(octet_${name} PUBLIC ${ROOM_EXPORTS} PRIVATE ${ROOM_USES} $<BUILD_INTERFACE:octet_options>
                          ${ROOM_LIBRARIES})
    target_compile_features(octet_${name} PUBLIC cxx_std_20)
    if(OCTET_HAVE_CUDA AND name IN_LIST OCTET_ROOMS_WITH_CUDA)
      target_link_libraries(octet_${name} PRIVATE $<BUILD_INTERFACE:octet_cuda_options> CUDA::cudart_static)
    endif()
  else()
    add_library(octet_${name} INTERFACE)
    target_include_directories(octet_${name} INTERFACE $<BUILD_INTERFACE:${view}>)
    target_link_libraries(octet_${name} INTERFACE ${ROOM_EXPORTS} ${ROOM_USES})
  endif()
  # The name that other projects link, whether Octet is installed or included.
  set_target_properties(octet_${name} PROPERTIES EXPORT_NAME ${name})
  add_library(octet::${name} ALIAS octet_${name})
  # Tests of a room see the same headers as the room itself.
  set_property(GLOBAL APPEND PROPERTY OCTET_ROOMS ${name})
  set_property(GLOBAL PROPERTY OCTET_SEEN_BY_${name} octet_${name} ${ROOM_USES})
endfunction()

# octet_seen_by(ROOM RESULT): the libraries with headers that the sources of a room may include, its own among them.
function(octet_seen_by room result)
  get_property(seen GLOBAL PROPERTY OCTET_SEEN_BY_${room})
  set(${result} ${seen} PARENT_SCOPE)
endfunction()
