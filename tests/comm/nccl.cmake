# Stand-ins for libnccl.so.2: a usable one, two old ones, and one without a required function.
function(octet_stand_in_nccl name)
  add_library(stand_in_nccl_${name} MODULE ${CMAKE_CURRENT_SOURCE_DIR}/comm/stand_in_nccl.cc)
  target_compile_definitions(stand_in_nccl_${name} PRIVATE ${ARGN})
  string(TOUPPER ${name} upper)
  target_compile_definitions(comm_tests PRIVATE STAND_IN_NCCL_${upper}="$<TARGET_FILE:stand_in_nccl_${name}>")
  add_dependencies(comm_tests stand_in_nccl_${name})
endfunction()
octet_stand_in_nccl(good STAND_IN_VERSION=22809)
octet_stand_in_nccl(old STAND_IN_VERSION=21805)
octet_stand_in_nccl(ancient STAND_IN_VERSION=2708 STAND_IN_WITHOUT_RECEIVE)
octet_stand_in_nccl(incomplete STAND_IN_VERSION=22304 STAND_IN_WITHOUT_RECEIVE)
# The loader of NCCL is internal to src/comm, and is tested without a GPU.
target_include_directories(comm_tests PRIVATE ${PROJECT_SOURCE_DIR}/src/comm)
