# Finds Apache Arrow's C++ library, which reads Parquet and Arrow files. It is the system's library, else the
# library in python3's package pyarrow, else a pyarrow wheel that pip fetches once into .deps of the source
# folder. Afterwards the target octet_arrow exists. Without it, column files are refused with advice how to
# convert them.
set(OCTET_ARROW AUTO CACHE STRING "Read Parquet and Arrow files: AUTO (where Apache Arrow can be had), ON or OFF")
set_property(CACHE OCTET_ARROW PROPERTY STRINGS AUTO ON OFF)
set(OCTET_ARROW_ROOT "" CACHE PATH "Folder of Apache Arrow, with include/ and libarrow.so.*; empty: found or fetched")
if(NOT OCTET_ARROW)
  message(STATUS "Parquet and Arrow files: not read (OCTET_ARROW is OFF)")
  return()
endif()

# The oldest version with all functions that the program calls.
set(_octet_arrow_least 24)

# octet_arrow_in(FOLDER): creates the target octet_arrow if FOLDER has suitable headers and libraries.
function(octet_arrow_in folder)
  file(GLOB arrow ${folder}/libarrow.so* ${folder}/lib/libarrow.so*)
  file(GLOB parquet ${folder}/libparquet.so* ${folder}/lib/libparquet.so*)
  if(NOT folder OR NOT arrow OR NOT parquet OR NOT EXISTS ${folder}/include/parquet/arrow/reader.h)
    return()
  endif()
  file(STRINGS ${folder}/include/arrow/util/config.h version REGEX "^#define ARROW_VERSION_MAJOR +[0-9]+")
  string(REGEX MATCH "[0-9]+$" version "${version}")
  if(NOT version OR version LESS _octet_arrow_least)
    message(STATUS "Parquet and Arrow files: Apache Arrow ${version} in ${folder} is older than ${_octet_arrow_least}")
    return()
  endif()
  list(GET arrow 0 arrow)
  list(GET parquet 0 parquet)
  add_library(octet_arrow INTERFACE IMPORTED GLOBAL)
  target_include_directories(octet_arrow SYSTEM INTERFACE ${folder}/include)
  target_link_libraries(octet_arrow INTERFACE ${parquet} ${arrow})
  # They are installed with the program: system libraries are older.
  set(OCTET_ARROW_FILES ${parquet} ${arrow} PARENT_SCOPE)
  message(STATUS "Parquet and Arrow files: read by Apache Arrow in ${folder}")
endfunction()

# The wheel for CPython 3.12. All wheels of this version have the same headers and libraries.
set(_octet_arrow_version 26.0.1)
set(_octet_arrow_platform manylinux_2_28_${CMAKE_SYSTEM_PROCESSOR})
set(_octet_arrow_sha256_x86_64 c718bf97a92a6dea97fd1062c3b9f9e2e83cb9cc926e752289fa4ffff41738f9)
set(_octet_arrow_sha256_aarch64 6c18167774fb599d42444b7ac558a893d49e750fb14232b538955e6f0d1d51ea)
set(_octet_arrow_sha256 ${_octet_arrow_sha256_${CMAKE_SYSTEM_PROCESSOR}})
set(_octet_arrow_deps ${PROJECT_SOURCE_DIR}/.deps/pyarrow-${_octet_arrow_version})
if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  string(APPEND _octet_arrow_deps -${CMAKE_SYSTEM_PROCESSOR})
endif()

if(OCTET_ARROW_ROOT)
  octet_arrow_in(${OCTET_ARROW_ROOT})
  if(NOT TARGET octet_arrow)
    message(FATAL_ERROR "OCTET_ARROW_ROOT is ${OCTET_ARROW_ROOT}, where include/parquet/arrow/reader.h, libarrow.so.* "
                        "or libparquet.so.* is missing or older than ${_octet_arrow_least}.")
  endif()
else()
  find_package(Parquet CONFIG QUIET)
  if(TARGET Parquet::parquet_shared AND NOT Parquet_VERSION VERSION_LESS _octet_arrow_least)
    add_library(octet_arrow INTERFACE IMPORTED GLOBAL)
    target_link_libraries(octet_arrow INTERFACE Parquet::parquet_shared Arrow::arrow_shared)
    message(STATUS "Parquet and Arrow files: read by Apache Arrow ${Parquet_VERSION}")
  endif()
  # In a cross build, this machine's Python has libraries for the wrong architecture.
  if(NOT TARGET octet_arrow AND NOT CMAKE_CROSSCOMPILING)
    execute_process(COMMAND python3 -c "import pyarrow; print(pyarrow.__path__[0], end='')"
                    OUTPUT_VARIABLE _octet_arrow_python ERROR_QUIET)
    octet_arrow_in("${_octet_arrow_python}")
  endif()
  if(NOT TARGET octet_arrow AND NOT EXISTS ${_octet_arrow_deps})
    message(STATUS "Parquet and Arrow files: fetching Apache Arrow of pyarrow ${_octet_arrow_version}")
    octet_fetch_wheel(pyarrow ${_octet_arrow_version} ${_octet_arrow_sha256} ${_octet_arrow_platform} ${_octet_arrow_deps}
                      PATTERNS "pyarrow/include/*" "pyarrow/libarrow.so*" "pyarrow/libparquet.so*" "*/licenses/*")
    if(octet_wheel_error AND OCTET_ARROW STREQUAL "AUTO")
      message(STATUS "Parquet and Arrow files: not read, for pip could not fetch pyarrow: ${octet_wheel_error}")
      return()
    endif()
  endif()
  if(NOT TARGET octet_arrow)
    octet_arrow_in(${_octet_arrow_deps}/pyarrow)
  endif()
  if(NOT TARGET octet_arrow)
    message(FATAL_ERROR "Apache Arrow was not found and could not be fetched by pip. Install libparquet-dev where the "
                        "distribution has it, name a folder with -DOCTET_ARROW_ROOT=..., or build without Parquet and "
                        "Arrow files with -DOCTET_ARROW=OFF.\n${octet_wheel_error}")
  endif()
endif()
target_compile_definitions(octet_arrow INTERFACE OCTET_HAVE_ARROW)
