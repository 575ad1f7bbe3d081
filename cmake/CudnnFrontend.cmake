# The headers of cudnn-frontend, through which attention on the GPU reaches cuDNN. They come with a PyPI wheel
# that pip fetches into .deps of the source folder, once; cuDNN itself is loaded when it is first used.
# Afterwards the target octet_cudnn exists, or OCTET_CUDNN is OFF.
option(OCTET_CUDNN "Use cuDNN for attention on the GPU (else our own, slower kernels)" ON)
set(OCTET_CUDNN_FRONTEND_DIR "" CACHE PATH "Folder that holds cudnn_frontend.h; empty: fetched by pip")
if(NOT OCTET_CUDNN)
  message(STATUS "cuDNN: left out (OCTET_CUDNN is OFF)")
  return()
endif()

set(_octet_frontend_version 1.32.0)
# The wheel for CPython 3.12: its headers are those of every other wheel of this version.
set(_octet_frontend_sha256 8b354a8e550c083eb247f1eb39a7d69a4a269075f5a01e4fcbd2531680b17239)
set(_octet_frontend_headers ${OCTET_CUDNN_FRONTEND_DIR})
if(NOT _octet_frontend_headers)
  set(_octet_deps ${CMAKE_SOURCE_DIR}/.deps/cudnn_frontend-${_octet_frontend_version})
  set(_octet_frontend_headers ${_octet_deps}/include)
endif()

if(NOT OCTET_CUDNN_FRONTEND_DIR AND NOT EXISTS ${_octet_frontend_headers}/cudnn_frontend.h)
  find_program(OCTET_PYTHON python3)
  mark_as_advanced(OCTET_PYTHON)
  set(_octet_fresh ${_octet_deps}.part)
  file(REMOVE_RECURSE ${_octet_fresh})
  file(MAKE_DIRECTORY ${_octet_fresh})
  file(WRITE ${_octet_fresh}/requirements.txt
       "nvidia-cudnn-frontend==${_octet_frontend_version} --hash=sha256:${_octet_frontend_sha256}\n")
  message(STATUS "cuDNN: fetching the headers of cudnn-frontend ${_octet_frontend_version}")
  execute_process(
    COMMAND ${OCTET_PYTHON} -m pip download --quiet --disable-pip-version-check --no-deps
            --only-binary=:all: --implementation cp --python-version 3.12 --platform manylinux_2_28_x86_64
            --require-hashes --requirement ${_octet_fresh}/requirements.txt --dest ${_octet_fresh}
    RESULT_VARIABLE _octet_code ERROR_VARIABLE _octet_error)
  file(GLOB _octet_wheel ${_octet_fresh}/*.whl)
  if(NOT _octet_code EQUAL 0 OR NOT _octet_wheel)
    file(REMOVE_RECURSE ${_octet_fresh})
    message(FATAL_ERROR "The headers of nvidia-cudnn-frontend ${_octet_frontend_version} could not be fetched by pip. "
                        "Name a folder that holds cudnn_frontend.h with -DOCTET_CUDNN_FRONTEND_DIR=..., or "
                        "build without cuDNN (slower attention) with -DOCTET_CUDNN=OFF.\n${_octet_error}")
  endif()
  file(ARCHIVE_EXTRACT INPUT ${_octet_wheel} DESTINATION ${_octet_fresh} PATTERNS "include/*" "*/licenses/*")
  file(REMOVE ${_octet_wheel})
  file(REMOVE_RECURSE ${_octet_deps})
  file(RENAME ${_octet_fresh} ${_octet_deps})
endif()
if(NOT EXISTS ${_octet_frontend_headers}/cudnn_frontend.h)
  message(FATAL_ERROR "There is no cudnn_frontend.h in ${_octet_frontend_headers}.")
endif()

find_path(OCTET_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV CUDNN_PATH PATH_SUFFIXES include)
mark_as_advanced(OCTET_CUDNN_INCLUDE_DIR)
if(NOT OCTET_CUDNN_INCLUDE_DIR)
  message(FATAL_ERROR "There is no cudnn.h: install the headers of cuDNN 9, name their folder with "
                      "-DOCTET_CUDNN_INCLUDE_DIR=..., or build without cuDNN (slower attention) with -DOCTET_CUDNN=OFF.")
endif()
add_library(octet_cudnn INTERFACE)
target_include_directories(octet_cudnn SYSTEM INTERFACE ${_octet_frontend_headers} ${OCTET_CUDNN_INCLUDE_DIR})
target_compile_definitions(octet_cudnn INTERFACE OCTET_HAVE_CUDNN=1 NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING=1)
message(STATUS "cuDNN: headers in ${OCTET_CUDNN_INCLUDE_DIR}, cudnn-frontend in ${_octet_frontend_headers}")
