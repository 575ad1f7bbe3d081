# Finds MPI, as the target octet_mpi. MPI_CXX_COMPILER, MPI_C_COMPILER or a wrapper as the compiler itself
# decide. The next choices are the Open MPI of pkg-config, and the mpicc on PATH. Boost.MPI is built for one
# MPI, which must be the same: a program with two MPIs fails with errors that name neither.
# octet_require_boost_of_mpi() checks this.

# octet_mpi_of_compiler(COMPILER OWNER VERSION): the MPI of a compiler wrapper, "Open MPI", MPICH or "", and
# its version.
function(octet_mpi_of_compiler compiler owner version)
  set(${owner} "" PARENT_SCOPE)
  set(${version} "" PARENT_SCOPE)
  execute_process(COMMAND ${compiler} --showme:version OUTPUT_VARIABLE open ERROR_VARIABLE error RESULT_VARIABLE code)
  if(code EQUAL 0 AND open MATCHES "Open MPI ([0-9][.0-9]*)")
    set(${owner} "Open MPI" PARENT_SCOPE)
    set(${version} "${CMAKE_MATCH_1}" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${compiler} -v OUTPUT_VARIABLE said ERROR_VARIABLE said)
  execute_process(COMMAND ${compiler} -show OUTPUT_VARIABLE shown ERROR_QUIET)
  # Intel MPI and others are derived from MPICH and have its interface.
  if("${said} ${shown}" MATCHES "MPICH|mpich|Intel\\(R\\) MPI|-lmpi")
    set(${owner} MPICH PARENT_SCOPE)
    if(said MATCHES "MPICH version ([0-9][.0-9]*)")
      set(${version} "${CMAKE_MATCH_1}" PARENT_SCOPE)
    endif()
  endif()
endfunction()

# octet_mpi_of_library(FILE RESULT): the MPI for which a library was compiled, by the symbols that it imports.
function(octet_mpi_of_library file result)
  set(${result} "" PARENT_SCOPE)
  set(dynamic -D)
  if(file MATCHES "\\.a$")
    set(dynamic)
  endif()
  execute_process(COMMAND ${CMAKE_NM} ${dynamic} --undefined-only ${file} OUTPUT_VARIABLE names ERROR_QUIET)
  if(names MATCHES "ompi_")
    set(${result} "Open MPI" PARENT_SCOPE)
  elseif(names MATCHES "U P?MPI_")
    set(${result} MPICH PARENT_SCOPE)
  endif()
endfunction()

# An MPI compiler that the user named; FindMPI caches others. Variables of the command line have no
# type in the cache.
get_property(_octet_type CACHE MPI_CXX_COMPILER PROPERTY TYPE)
get_property(_octet_type_c CACHE MPI_C_COMPILER PROPERTY TYPE)
if(NOT DEFINED OCTET_MPI_NAMED OR _octet_type STREQUAL "UNINITIALIZED" OR _octet_type_c STREQUAL "UNINITIALIZED")
  set(_octet_named "${MPI_CXX_COMPILER}")
  if(NOT _octet_named)
    set(_octet_named "${MPI_C_COMPILER}")
  endif()
  get_filename_component(_octet_compiler "${CMAKE_CXX_COMPILER}" NAME)
  if(NOT _octet_named AND _octet_compiler MATCHES "^mpi")
    set(_octet_named "${CMAKE_CXX_COMPILER}")
  endif()
  set(OCTET_MPI_NAMED "${_octet_named}" CACHE INTERNAL "A compiler of MPI that was asked for")
endif()

# Boost.MPI's CMake file requires MPI for C++; its C++ bindings are not needed.
set(MPI_CXX_SKIP_MPICXX ON)
set(_octet_mpi "")
pkg_check_modules(OMPI QUIET IMPORTED_TARGET GLOBAL ompi-c)
if(OCTET_MPI_NAMED)
  octet_mpi_of_compiler("${OCTET_MPI_NAMED}" _octet_mpi _octet_mpi_version)
  set(_octet_mpi_from "${OCTET_MPI_NAMED}")
  if(NOT _octet_mpi)
    message(FATAL_ERROR "no MPI belongs to the compiler that is named\n"
      "  expected: mpicxx or mpicc of Open MPI or MPICH\n"
      "  found:    ${OCTET_MPI_NAMED}\n"
      "  where:    MPI_CXX_COMPILER, MPI_C_COMPILER or CMAKE_CXX_COMPILER\n"
      "  to do:    name such a compiler, or none in a new build folder: the Open MPI of libopenmpi-dev is found by itself")
  endif()
  # FindMPI searches a compiler for each language separately, which may belong to another MPI.
  if(NOT MPI_C_COMPILER AND OCTET_MPI_NAMED MATCHES "mpi(cxx|c\\+\\+|CC)")
    string(REGEX REPLACE "mpi(cxx|c\\+\\+|CC)" "mpicc" _octet_compiler "${OCTET_MPI_NAMED}")
    find_program(MPI_C_COMPILER ${_octet_compiler})
  endif()
elseif(OMPI_FOUND)
  set(_octet_mpi "Open MPI")
  set(_octet_mpi_version ${OMPI_VERSION})
  set(_octet_mpi_from "pkg-config")
else()
  find_package(MPI QUIET COMPONENTS C)
  if(MPI_C_FOUND AND MPI_C_COMPILER)
    octet_mpi_of_compiler("${MPI_C_COMPILER}" _octet_mpi _octet_mpi_version)
    set(_octet_mpi_from "${MPI_C_COMPILER}")
  endif()
  if(NOT _octet_mpi)
    message(FATAL_ERROR "there is no MPI\n"
      "  expected: Open MPI with its file for pkg-config (ompi-c.pc), or mpicc of Open MPI or MPICH on PATH\n"
      "  to do:    install it (launch/setup; Debian's package is libopenmpi-dev), load its module, or name its compiler: "
      "-DMPI_CXX_COMPILER=/path/to/mpicxx")
  endif()
endif()
set(_octet_mpi_words "${_octet_mpi} ${_octet_mpi_version}")
string(STRIP "${_octet_mpi_words}" _octet_mpi_words)
message(STATUS "MPI: ${_octet_mpi_words} (${_octet_mpi_from})")

# octet_require_boost_of_mpi(): checks that Boost.MPI, which find_package has found, belongs to this MPI.
function(octet_require_boost_of_mpi)
  set(file "")
  foreach(property IN ITEMS IMPORTED_LOCATION_RELEASE IMPORTED_LOCATION_NONE IMPORTED_LOCATION_DEBUG IMPORTED_LOCATION)
    get_target_property(location Boost::mpi ${property})
    if(location AND NOT file)
      set(file ${location})
    endif()
  endforeach()
  octet_mpi_of_library("${file}" owner)
  if(owner AND NOT owner STREQUAL _octet_mpi)
    message(FATAL_ERROR "Boost.MPI belongs to another MPI, and a program cannot be linked with two\n"
      "  expected: Boost.MPI built for ${_octet_mpi_words}, the MPI of ${_octet_mpi_from}\n"
      "  found:    ${file}, built for ${owner}\n"
      "  to do:    build with Open MPI, for which distributions build Boost.MPI: install libopenmpi-dev (launch/setup), and configure a "
      "new build folder without naming MPICH's compiler\n"
      "            or build Boost.MPI for ${_octet_mpi_words} (`using mpi : ${_octet_mpi_from} ;` in user-config.jam, b2 "
      "--with-mpi --with-serialization), and name its folder: -DBOOST_ROOT=FOLDER")
  endif()
endfunction()

# Only libmpi: newer Open MPI has no C++ bindings. Uses pkg-config's target if it is the same MPI, else
# FindMPI's.
set(_octet_mpi_target PkgConfig::OMPI)
if(NOT OMPI_FOUND OR NOT _octet_mpi STREQUAL "Open MPI" OR NOT _octet_mpi_version VERSION_EQUAL OMPI_VERSION)
  set(_octet_mpi_target MPI::MPI_C)
endif()
