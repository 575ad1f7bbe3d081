# Cross build for 64-bit ARM: Debian's cross compiler, libraries of that architecture in addition to this
# machine's (multiarch), and QEMU's user emulation for programs that run during build and tests. The packages:
#
#   dpkg --add-architecture arm64 && apt-get update
#   apt-get install g++-aarch64-linux-gnu qemu-user-static LIBRARY:arm64...   (the lib...-dev that launch/setup names)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
# pkg-config must not find this machine's own libraries.
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
find_program(OCTET_QEMU_AARCH64 NAMES qemu-aarch64-static qemu-aarch64)
if(OCTET_QEMU_AARCH64)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${OCTET_QEMU_AARCH64})
endif()
