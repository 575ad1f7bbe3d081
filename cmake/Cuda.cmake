# Decides whether device, ops and comm get their CUDA side, and sets up nvcc. Afterwards OCTET_HAVE_CUDA tells.
# AUTO takes CUDA where a toolkit and a working driver are found, ON insists on the toolkit (a program built
# so starts without a driver too, and then runs on the CPU), OFF leaves it out.
set(OCTET_CUDA AUTO CACHE STRING "CUDA side of device, ops and comm: AUTO, ON or OFF")
set_property(CACHE OCTET_CUDA PROPERTY STRINGS AUTO ON OFF)

function(octet_find_nvcc result)
  set(toolkits ${CUDAToolkit_ROOT} $ENV{CUDAToolkit_ROOT} $ENV{CUDA_HOME} $ENV{CUDA_PATH})
  list(TRANSFORM toolkits APPEND /bin)
  find_program(OCTET_NVCC nvcc HINTS ${toolkits} PATHS /usr/local/cuda/bin)
  mark_as_advanced(OCTET_NVCC)
  set(${result} ${OCTET_NVCC} PARENT_SCOPE)
endfunction()

function(octet_driver_works result)
  set(${result} FALSE PARENT_SCOPE)
  find_program(OCTET_NVIDIA_SMI nvidia-smi)
  mark_as_advanced(OCTET_NVIDIA_SMI)
  if(NOT OCTET_NVIDIA_SMI)
    return()
  endif()
  execute_process(COMMAND ${OCTET_NVIDIA_SMI} -L RESULT_VARIABLE code OUTPUT_QUIET ERROR_QUIET TIMEOUT 30)
  if(code EQUAL 0)
    set(${result} TRUE PARENT_SCOPE)
  endif()
endfunction()

set(OCTET_HAVE_CUDA FALSE)
set(_octet_why "OCTET_CUDA is OFF")
if(OCTET_CUDA STREQUAL "AUTO")
  octet_find_nvcc(_octet_nvcc)
  octet_driver_works(_octet_driver)
  if(NOT _octet_nvcc)
    set(_octet_why "no CUDA toolkit (nvcc) found")
  elseif(NOT _octet_driver)
    set(_octet_why "no NVIDIA driver found; -DOCTET_CUDA=ON builds for another machine")
  else()
    set(OCTET_HAVE_CUDA TRUE)
  endif()
elseif(OCTET_CUDA)
  octet_find_nvcc(_octet_nvcc)
  if(NOT _octet_nvcc)
    message(FATAL_ERROR "OCTET_CUDA is ON, but there is no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda. "
                        "Install the CUDA 13 toolkit, name it with CUDA_HOME, or set OCTET_CUDA=OFF.")
  endif()
  set(OCTET_HAVE_CUDA TRUE)
endif()

if(NOT OCTET_HAVE_CUDA)
  message(STATUS "CUDA: left out (${_octet_why})")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${_octet_nvcc})
endif()
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
# Machine code for Hopper with its own instructions, and PTX that newer GPUs' drivers compile. Written out
# because CMake 3.25 does not know architectures that end in a letter.
set(CMAKE_CUDA_ARCHITECTURES OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)
# CMake 3.25 does not know that this compiler has C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -lineinfo")
add_library(octet_cuda_options INTERFACE)
target_compile_definitions(octet_cuda_options INTERFACE OCTET_HAVE_CUDA=1)
target_compile_options(octet_cuda_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_90,code=compute_90
                             --expt-relaxed-constexpr
                             -Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas,-Wno-missing-field-initializers>)
if(OCTET_WARNINGS_AS_ERRORS)
  target_compile_options(octet_cuda_options INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings -Xcompiler=-Werror>)
endif()
# The runtime is linked in and looks for the driver when it is first called, so that programs start without.
target_link_libraries(octet_cuda_options INTERFACE CUDA::cudart_static)
message(STATUS "CUDA: ${CUDAToolkit_VERSION} from ${CUDAToolkit_BIN_DIR}")
include(Wheel)
include(CudnnFrontend)
include(Nccl)
