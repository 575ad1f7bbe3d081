# Data of `trainer --version`: the commit, read from git in every build, and the built-in features.
set(OCTET_COMMIT "" CACHE STRING "The commit that --version says, where the sources come without git (letters, digits, . - _)")
if(NOT OCTET_COMMIT MATCHES "^[A-Za-z0-9._-]*$")
  message(FATAL_ERROR "OCTET_COMMIT: expected the name of a commit (letters, digits, . - _), found '${OCTET_COMMIT}'")
endif()
set(_octet_generated ${PROJECT_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${_octet_generated})

set(_octet_gpu "no GPUs")
if(OCTET_HAVE_CUDA)
  set(_octet_gpu "CUDA ${CUDAToolkit_VERSION} for sm_90a")
  foreach(_octet_part cudnn nccl)
    if(TARGET octet_${_octet_part})
      string(TOUPPER ${_octet_part} _octet_name)
      string(APPEND _octet_gpu ", ${_octet_name}")
    endif()
  endforeach()
endif()
set(_octet_arrow "no Apache Arrow (no Parquet files)")
if(TARGET octet_arrow)
  set(_octet_arrow "Apache Arrow")
endif()
set(_octet_cairo "no cairo (no plots)")
if(TARGET PkgConfig::CAIRO)
  set(_octet_cairo "cairo")
endif()
string(JOIN ", " OCTET_BUILT_WITH "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
       "${CMAKE_SYSTEM_PROCESSOR}" "${_octet_gpu}" "HDF5 ${HDF5_VERSION}" "${_octet_arrow}" "${_octet_cairo}")
set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/cli/version.cc TARGET_DIRECTORY octet_cli
             PROPERTY COMPILE_DEFINITIONS OCTET_BUILT_WITH="${OCTET_BUILT_WITH}")

add_custom_target(octet_commit
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DTO=${_octet_generated}/commit.cc -DNAMED=${OCTET_COMMIT}
          -P ${PROJECT_SOURCE_DIR}/cmake/WriteCommit.cmake
  BYPRODUCTS ${_octet_generated}/commit.cc VERBATIM)
add_dependencies(octet_cli octet_commit)
target_sources(octet_cli PRIVATE ${_octet_generated}/commit.cc)
