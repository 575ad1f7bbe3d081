# Selects another linker than the compiler's own. It saves seconds: most links take less than one.
set(OCTET_LINKER "" CACHE STRING "Linker for g++'s -fuse-ld (lld, mold); empty: the compiler's own")
if(OCTET_LINKER AND NOT CMAKE_CROSSCOMPILING)
  add_link_options($<$<LINK_LANGUAGE:C,CXX>:-fuse-ld=${OCTET_LINKER}>)
  # GCC may emit an empty cold part of a function. With lld the unwinder then does not find the function at
  # the same address, and an exception in it ends the process. tests/rooms/unwind looks for such functions.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-reorder-blocks-and-partition>)
endif()
