# cmake --install installs:
# - the program;
# - mpirun, all, check-hosts and supervise of launch/, with the prefix octet-;
# - manual pages, completion and a module file;
# - headers, libraries, and the package that find_package(octet) finds.
# The rooms answers and cli are parts of the program, not libraries.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(rooms GLOBAL PROPERTY OCTET_ROOMS)
list(REMOVE_ITEM rooms answers cli)
foreach(room ${rooms})
  install(TARGETS octet_${room} EXPORT octet ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(DIRECTORY include/octet/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/octet)
endforeach()

set(own ${CMAKE_INSTALL_LIBDIR}/octet)
file(RELATIVE_PATH up /${CMAKE_INSTALL_BINDIR} /${own})
set_target_properties(trainer PROPERTIES INSTALL_RPATH "$ORIGIN/${up}")
install(TARGETS trainer RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS octet-mpirun RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(PROGRAMS launch/check-hosts DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME octet-check-hosts)
install(PROGRAMS launch/all DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME octet-all)
install(PROGRAMS launch/supervise DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME octet-supervise)
install(FILES launch/words.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/octet/launch)
install(PROGRAMS launch/slurm.sbatch launch/pbs.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/octet)
install(FILES launch/mpijob.yaml DESTINATION ${CMAKE_INSTALL_DATADIR}/octet)

# The program writes its completion, and help2man writes manual pages from its --help, if it can run on the build machine.
if(NOT CMAKE_CROSSCOMPILING)
  set(pages ${PROJECT_BINARY_DIR}/pages)
  file(MAKE_DIRECTORY ${pages})
  set(written)
  foreach(page "completion bash>trainer.bash" "completion zsh>_trainer" "completion fish>trainer.fish")
    string(REGEX MATCH "^(.*)>(.*)$" both "${page}")
    set(file ${pages}/${CMAKE_MATCH_2})
    add_custom_command(OUTPUT ${file} DEPENDS trainer VERBATIM COMMAND ${CMAKE_COMMAND}
      -DPROGRAM=$<TARGET_FILE:trainer> "-DTOPIC=${CMAKE_MATCH_1}" -DTO=${file} -P ${PROJECT_SOURCE_DIR}/cmake/WritePage.cmake)
    list(APPEND written ${file})
  endforeach()
  find_program(OCTET_HELP2MAN help2man)
  if(OCTET_HELP2MAN)
    set(file ${pages}/man/man1/trainer.1)
    add_custom_command(OUTPUT ${file} DEPENDS trainer docs/man/trainer.h2m docs/man/trainer-config.h2m cmake/WriteManuals.cmake VERBATIM
      COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:trainer> -DHELP2MAN=${OCTET_HELP2MAN} -DFOLDER=${pages}/man
              -DVERSION=${PROJECT_VERSION} -DSECTIONS=${PROJECT_SOURCE_DIR}/docs/man
              -P ${PROJECT_SOURCE_DIR}/cmake/WriteManuals.cmake)
    list(APPEND written ${file})
    install(DIRECTORY ${pages}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR})
  else()
    message(STATUS "Manual pages of trainer: left out, because help2man is missing (launch/setup installs it)")
  endif()
  add_custom_target(octet_pages ALL DEPENDS ${written})
  install(FILES ${pages}/trainer.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME trainer)
  install(FILES ${pages}/_trainer DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${pages}/trainer.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
install(FILES docs/man/octet-mpirun.1 docs/man/octet-check-hosts.1 docs/man/octet-all.1 docs/man/octet-supervise.1
        DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES cmake/octet.modulefile DESTINATION ${CMAKE_INSTALL_DATADIR}/modulefiles RENAME octet)

# Apache Arrow: libraries that the build fetched are installed; libraries of the system are not.
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
install(FILES ${PROJECT_BINARY_DIR}/octetConfig.cmake ${PROJECT_BINARY_DIR}/octetConfigVersion.cmake cmake/Packages.cmake cmake/Mpi.cmake
        DESTINATION ${config})
install(EXPORT octet NAMESPACE octet:: FILE octetTargets.cmake DESTINATION ${config})
