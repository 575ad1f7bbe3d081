# Writes the output of PROGRAM --help TOPIC to the file TO. TOPIC has words separated by blanks.
separate_arguments(TOPIC UNIX_COMMAND "${TOPIC}")
execute_process(COMMAND ${PROGRAM} --help ${TOPIC} OUTPUT_FILE ${TO} RESULT_VARIABLE failed)
if(failed)
  file(REMOVE ${TO})
  message(FATAL_ERROR "${PROGRAM} --help ${TOPIC} ended with ${failed}")
endif()
