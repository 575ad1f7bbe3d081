# Finds the header of NCCL. The toolkit or the system has it; otherwise pip fetches a PyPI wheel with it once
# into .deps of the source folder. NCCL itself is never linked: it is loaded at its first use. Afterwards the
# target octet_nccl exists; without it, GPUs communicate without NCCL.
option(OCTET_NCCL "Let GPUs reach each other through NCCL" ON)
set(OCTET_NCCL_INCLUDE_DIR "" CACHE PATH "Folder that holds nccl.h; empty: found, else fetched by pip")
if(NOT OCTET_NCCL)
  message(STATUS "NCCL: left out (OCTET_NCCL is OFF)")
  return()
endif()

# Headers and libraries may differ in version, from the oldest version that the program loads on.
set(_octet_nccl_least 22200)
function(octet_nccl_header_serves folder result)
  set(${result} FALSE PARENT_SCOPE)
  if(EXISTS ${folder}/nccl.h)
    file(STRINGS ${folder}/nccl.h code REGEX "^#define NCCL_VERSION_CODE +[0-9]+")
    string(REGEX MATCH "[0-9]+$" code "${code}")
    if(code AND NOT code LESS _octet_nccl_least)
      set(${result} TRUE PARENT_SCOPE)
    endif()
  endif()
endfunction()

set(_octet_nccl_version 2.28.9)
set(_octet_nccl_sha256 e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42)
set(_octet_nccl_headers ${OCTET_NCCL_INCLUDE_DIR})
if(NOT _octet_nccl_headers)
  # Searched in every configuration, because a cached path may outlive its toolkit.
  find_path(_octet_nccl_found nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_CACHE)
  octet_nccl_header_serves("${_octet_nccl_found}" _octet_nccl_serves)
  if(_octet_nccl_serves)
    set(_octet_nccl_headers ${_octet_nccl_found})
  else()
    set(_octet_nccl_deps ${PROJECT_SOURCE_DIR}/.deps/nccl-${_octet_nccl_version})
    set(_octet_nccl_headers ${_octet_nccl_deps}/nvidia/nccl/include)
    if(NOT EXISTS ${_octet_nccl_headers}/nccl.h)
      # The wheel has 196 MB, nearly all of it the library.
      message(STATUS "NCCL: fetching the header of NCCL ${_octet_nccl_version}")
      octet_fetch_wheel(nvidia-nccl-cu13 ${_octet_nccl_version} ${_octet_nccl_sha256} manylinux_2_18_x86_64
                        ${_octet_nccl_deps} PATTERNS "*/include/nccl.h" "*/licenses/*")
      if(octet_wheel_error)
        string(CONCAT _octet_text
               "The header of NCCL ${_octet_nccl_version} could not be fetched by pip. Install it "
               "(libnccl-dev of NVIDIA's repository), name a folder that holds nccl.h with "
               "-DOCTET_NCCL_INCLUDE_DIR=..., or build without NCCL with -DOCTET_NCCL=OFF.\n"
               "${octet_wheel_error}")
        octet_leave_out(NCCL "${_octet_text}")
      endif()
    endif()
  endif()
endif()
octet_nccl_header_serves("${_octet_nccl_headers}" _octet_nccl_serves)
if(NOT _octet_nccl_serves)
  message(FATAL_ERROR "There is no nccl.h of NCCL 2.22 or newer in ${_octet_nccl_headers}.")
endif()

add_library(octet_nccl INTERFACE)
target_include_directories(octet_nccl SYSTEM INTERFACE ${_octet_nccl_headers})
target_compile_definitions(octet_nccl INTERFACE OCTET_HAVE_NCCL=1)
message(STATUS "NCCL: header in ${_octet_nccl_headers}")
