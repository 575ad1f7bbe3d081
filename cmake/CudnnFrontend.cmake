# Finds the headers of cudnn-frontend, the interface to cuDNN's attention on the GPU. They are in a PyPI wheel
# that pip fetches once into .deps of the source folder. cuDNN itself is loaded at its first use. Afterwards
# the target octet_cudnn exists; without it, attention uses our own kernels.
option(OCTET_CUDNN "Use cuDNN for attention on the GPU (else our own, slower kernels)" ON)
set(OCTET_CUDNN_FRONTEND_DIR "" CACHE PATH "Folder that holds cudnn_frontend.h; empty: fetched by pip")
if(NOT OCTET_CUDNN)
  message(STATUS "cuDNN: left out (OCTET_CUDNN is OFF)")
  return()
endif()

set(_octet_frontend_version 1.32.0)
# The wheel for CPython 3.12. All wheels of this version have the same headers.
set(_octet_frontend_sha256 8b354a8e550c083eb247f1eb39a7d69a4a269075f5a01e4fcbd2531680b17239)
set(_octet_frontend_headers ${OCTET_CUDNN_FRONTEND_DIR})
if(NOT _octet_frontend_headers)
  set(_octet_deps ${PROJECT_SOURCE_DIR}/.deps/cudnn_frontend-${_octet_frontend_version})
  set(_octet_frontend_headers ${_octet_deps}/include)
endif()

if(NOT OCTET_CUDNN_FRONTEND_DIR AND NOT EXISTS ${_octet_frontend_headers}/cudnn_frontend.h)
  message(STATUS "cuDNN: fetching the headers of cudnn-frontend ${_octet_frontend_version}")
  octet_fetch_wheel(nvidia-cudnn-frontend ${_octet_frontend_version} ${_octet_frontend_sha256} manylinux_2_28_x86_64
                    ${_octet_deps} PATTERNS "include/*" "*/licenses/*")
  if(octet_wheel_error)
    string(CONCAT _octet_text
           "The headers of nvidia-cudnn-frontend ${_octet_frontend_version} could not be fetched by pip. "
           "Name a folder that holds cudnn_frontend.h with -DOCTET_CUDNN_FRONTEND_DIR=..., or "
           "build without cuDNN (slower attention) with -DOCTET_CUDNN=OFF.\n${octet_wheel_error}")
    octet_leave_out(cuDNN "${_octet_text}")
  endif()
endif()
if(NOT EXISTS ${_octet_frontend_headers}/cudnn_frontend.h)
  message(FATAL_ERROR "There is no cudnn_frontend.h in ${_octet_frontend_headers}.")
endif()

find_path(OCTET_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV CUDNN_PATH PATH_SUFFIXES include)
mark_as_advanced(OCTET_CUDNN_INCLUDE_DIR)
if(NOT OCTET_CUDNN_INCLUDE_DIR)
  string(CONCAT _octet_text
         "There is no cudnn.h: install the headers of cuDNN 9, name their folder with "
         "-DOCTET_CUDNN_INCLUDE_DIR=..., or build without cuDNN (slower attention) with -DOCTET_CUDNN=OFF.")
  octet_leave_out(cuDNN "${_octet_text}")
endif()
add_library(octet_cudnn INTERFACE)
target_include_directories(octet_cudnn SYSTEM INTERFACE ${_octet_frontend_headers} ${OCTET_CUDNN_INCLUDE_DIR})
target_compile_definitions(octet_cudnn INTERFACE OCTET_HAVE_CUDNN=1 NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING=1)
message(STATUS "cuDNN: headers in ${OCTET_CUDNN_INCLUDE_DIR}, cudnn-frontend in ${_octet_frontend_headers}")
