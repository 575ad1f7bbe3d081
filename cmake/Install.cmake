# cmake --install: the program, launch/mpirun as octet-mpirun, launch/supervise as octet-supervise, headers, libraries, and the package that
# find_package(octet) finds. The room cli is the program and no library.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(rooms GLOBAL PROPERTY OCTET_ROOMS)
list(REMOVE_ITEM rooms cli)
foreach(room ${rooms})
  install(TARGETS octet_${room} EXPORT octet ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(DIRECTORY include/octet/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/octet)
endforeach()

set(own ${CMAKE_INSTALL_LIBDIR}/octet)
file(RELATIVE_PATH up /${CMAKE_INSTALL_BINDIR} /${own})
set_target_properties(trainer PROPERTIES INSTALL_RPATH "$ORIGIN/${up}")
install(TARGETS trainer RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(PROGRAMS launch/mpirun DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME octet-mpirun)
install(PROGRAMS launch/supervise DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME octet-supervise)

# Apache Arrow: what the build fetched goes along, what the system has is found there again.
set(arrow_names)
foreach(file ${OCTET_ARROW_FILES})
  get_filename_component(name ${file} NAME)
  list(APPEND arrow_names ${name})
endforeach()
if(arrow_names)
  install(CODE "file(INSTALL DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${own}\" TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN
               FILES ${OCTET_ARROW_FILES})")
endif()
set(arrow_of_system FALSE)
if(TARGET octet_arrow AND NOT arrow_names)
  set(arrow_of_system TRUE)
endif()

set(config ${CMAKE_INSTALL_LIBDIR}/cmake/octet)
configure_package_config_file(cmake/octetConfig.cmake.in ${PROJECT_BINARY_DIR}/octetConfig.cmake
                              INSTALL_DESTINATION ${config} PATH_VARS own)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/octetConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/octetConfig.cmake ${PROJECT_BINARY_DIR}/octetConfigVersion.cmake cmake/Packages.cmake
        DESTINATION ${config})
install(EXPORT octet NAMESPACE octet:: FILE octetTargets.cmake DESTINATION ${config})
