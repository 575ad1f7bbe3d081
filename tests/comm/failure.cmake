# A failed rank ends the job. Arguments: the way to fail, the accepted exit codes, a text of exactly one
# output line.
function(octet_failure_test how codes)
  add_test(NAME comm.mpi.failure.${how}
           COMMAND ${PROJECT_SOURCE_DIR}/tests/comm/failure.sh ${OCTET_MPIRUN} $<TARGET_FILE:comm_mpi_tests> ${how}
                   ${codes} ${ARGN})
  set_tests_properties(comm.mpi.failure.${how} PROPERTIES TIMEOUT 90 LABELS mpi RESOURCE_LOCK ranks
                                                           COST 100)
endfunction()
octet_failure_test(killed 137 "a rank was ended by signal 9")
octet_failure_test(abort 76)
octet_failure_test(exception 1 "one rank cannot go on")
octet_failure_test(together 64 "the last rank's file is broken")
octet_failure_test(mismatch 1 "disagree about which collective")
octet_failure_test(unwinding 1 "thrown through the job")
octet_failure_test(place 0)
# MPI's profiling interface lets the tests intercept MPI_Init_thread.
target_link_libraries(comm_mpi_tests PRIVATE octet_mpi)
octet_failure_test(no-threads 1 "this MPI does not support threads")
octet_failure_test(funneled 0)
# A rank is stopped, killed or leaves in a collective of each kind. The other ranks name it.
foreach(kind reduce_scatter ordered_sum all_gather all_gather_values all_reduce_max all_reduce_sum all_gather_int broadcast)
  octet_failure_test(stopped-${kind} 75 "nothing from rank 2")
  octet_failure_test(killed-${kind} 137)
endforeach()
octet_failure_test(leaves-reduce_scatter 75 "nothing from rank 2")
octet_failure_test(leaves-all_gather_int 75 "nothing from rank 2")
# Slices beyond 2 GiB take 4.5 GB of memory, so this test runs only on request: ctest -C Big -R comm.mpi.huge
add_test(NAME comm.mpi.huge CONFIGURATIONS Big
         COMMAND ${OCTET_MPIRUN} -np 2 $<TARGET_FILE:comm_mpi_tests> huge)
set_tests_properties(comm.mpi.huge PROPERTIES TIMEOUT 400 PROCESSORS 2)
