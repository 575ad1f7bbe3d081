# What Octet stands on. Every dependency is a Debian package that launch/setup installs; a missing one
# stops the configuration with its name.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(PkgConfig REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(spdlog REQUIRED)
# Debian's CMake file for oneDNN asks for OpenCL, which the CPU engine does not need.
find_path(DNNL_INCLUDE_DIR dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(DNNL::dnnl UNKNOWN IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                      INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
pkg_check_modules(YAMLCPP REQUIRED IMPORTED_TARGET yaml-cpp)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(PNG REQUIRED IMPORTED_TARGET libpng)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(HDF5 REQUIRED IMPORTED_TARGET hdf5-serial)
# Only libmpi: the MPI C++ bindings are gone from newer Open MPI.
pkg_check_modules(OMPI REQUIRED IMPORTED_TARGET ompi-c)
add_library(octet_mpi INTERFACE)
target_link_libraries(octet_mpi INTERFACE PkgConfig::OMPI)
target_compile_definitions(octet_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
# What ranks tell each other beside the data.
find_package(Boost REQUIRED COMPONENTS mpi serialization)
# Its CMake file asks for MPI's C++ bindings, which it does not use.
set_property(TARGET Boost::mpi PROPERTY INTERFACE_LINK_LIBRARIES Boost::serialization octet_mpi)
include(Wheel)
include(Arrow)
if(OCTET_TESTS)
  find_package(GTest REQUIRED)
endif()
