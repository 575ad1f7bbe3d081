# The dependencies of Octet. Each is a Debian package that launch/setup installs. A missing dependency stops
# the configuration with its name.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # Paths below the source folder are hashed as relative paths, so all clones on a machine share the cache.
  set(CCACHE_PROGRAM ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
                     CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# A project that includes Octet links its libraries and needs their dependencies.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE)
include(Packages)
find_package(CLI11 REQUIRED)
include(Wheel)
include(Arrow)
if(OCTET_TESTS)
  find_package(GTest REQUIRED)
endif()
