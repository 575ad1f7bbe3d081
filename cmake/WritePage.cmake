# Writes what PROGRAM prints about TOPIC (words with blanks between) to the file TO.
separate_arguments(TOPIC UNIX_COMMAND "${TOPIC}")
execute_process(COMMAND ${PROGRAM} --help ${TOPIC} OUTPUT_FILE ${TO} RESULT_VARIABLE failed)
if(failed)
  file(REMOVE ${TO})
  message(FATAL_ERROR "${PROGRAM} --help ${TOPIC} ended with ${failed}")
endif()
