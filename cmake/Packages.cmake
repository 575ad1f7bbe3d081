# The packages that Octet's libraries need. The build includes this file, and so does the installed
# octetConfig.cmake. A missing package stops the configuration with its name.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(PkgConfig REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(spdlog REQUIRED)
# Debian's CMake file for oneDNN requires OpenCL, which the CPU engine does not need.
find_path(DNNL_INCLUDE_DIR dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
if(NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED GLOBAL)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
endif()
pkg_check_modules(YAMLCPP REQUIRED IMPORTED_TARGET GLOBAL yaml-cpp)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET GLOBAL libxxhash)
# Newer releases of RE2 (Debian 13) depend on Abseil, and pkg-config takes half a minute over its libraries.
# Linking a shared RE2 needs none of them.
find_path(RE2_INCLUDE_DIR re2/re2.h REQUIRED)
find_library(RE2_LIBRARY re2 REQUIRED)
if(NOT TARGET octet_re2)
  add_library(octet_re2 UNKNOWN IMPORTED GLOBAL)
  set_target_properties(octet_re2 PROPERTIES IMPORTED_LOCATION ${RE2_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${RE2_INCLUDE_DIR})
endif()
# cairo draws the plots. A run without cairo draws none and warns.
set(OCTET_CAIRO AUTO CACHE STRING "Draw plots: AUTO (if cairo is installed), ON or OFF")
set_property(CACHE OCTET_CAIRO PROPERTY STRINGS AUTO ON OFF)
if(OCTET_CAIRO)
  pkg_check_modules(CAIRO IMPORTED_TARGET GLOBAL cairo>=1.14 cairo-svg cairo-png)
  if(NOT CAIRO_FOUND AND NOT OCTET_CAIRO STREQUAL "AUTO")
    message(FATAL_ERROR "OCTET_CAIRO is ON, and cairo was not found. Install libcairo2-dev (launch/setup), or build without "
                        "plots with -DOCTET_CAIRO=OFF.")
  endif()
endif()
if(TARGET PkgConfig::CAIRO)
  message(STATUS "Plots: drawn by cairo ${CAIRO_cairo_VERSION}")
else()
  message(STATUS "Plots: not drawn (libcairo2-dev is missing, or OCTET_CAIRO is OFF)")
endif()
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET GLOBAL zlib)
pkg_check_modules(HDF5 REQUIRED IMPORTED_TARGET GLOBAL hdf5-serial)
include(${CMAKE_CURRENT_LIST_DIR}/Mpi.cmake)
# Boost.MPI carries the host-side messages of the ranks. BOOST_ROOT is the usual name of its folder; CMake itself
# reads it from version 3.27 on.
if(NOT Boost_ROOT AND BOOST_ROOT)
  set(Boost_ROOT ${BOOST_ROOT})
elseif(NOT Boost_ROOT AND NOT "$ENV{BOOST_ROOT}" STREQUAL "")
  set(Boost_ROOT $ENV{BOOST_ROOT})
endif()
find_package(Boost CONFIG REQUIRED COMPONENTS mpi serialization)
octet_require_boost_of_mpi()
if(NOT TARGET octet_mpi)
  if(_octet_mpi_target STREQUAL "MPI::MPI_C")
    find_package(MPI REQUIRED COMPONENTS C)
  endif()
  add_library(octet_mpi INTERFACE IMPORTED GLOBAL)
  set_target_properties(octet_mpi PROPERTIES INTERFACE_LINK_LIBRARIES ${_octet_mpi_target}
                        INTERFACE_COMPILE_DEFINITIONS "OMPI_SKIP_MPICXX;MPICH_SKIP_MPICXX")
endif()
# Its CMake file requires MPI's C++ bindings, which it does not use.
set_property(TARGET Boost::mpi PROPERTY INTERFACE_LINK_LIBRARIES Boost::serialization octet_mpi)
