# Writes manual pages with help2man from the --help of PROGRAM to FOLDER: man1/trainer.1, man1/trainer-COMMAND.1 for each
# command of its overview, man5/trainer-config.5, and man7/trainer-environment.7. The folder SECTIONS
# has further sections of trainer.1 and trainer-config.5.
execute_process(COMMAND ${PROGRAM} --help OUTPUT_VARIABLE overview COMMAND_ERROR_IS_FATAL ANY)

# page(NAME SECTION SUMMARY "ARGUMENTS" [more options of help2man])
function(page name section summary arguments)
  execute_process(COMMAND ${HELP2MAN} --no-info --section=${section} "--name=${summary}" "--help-option=${arguments}"
                          "--version-string=${name} ${VERSION}" "--source=octet ${VERSION}" --manual=Octet ${ARGN}
                          --output=${FOLDER}/man${section}/${name}.${section} ${PROGRAM}
                  COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Pages of commands that no longer exist are removed.
foreach(section 1 5 7)
  file(REMOVE_RECURSE ${FOLDER}/man${section})
  file(MAKE_DIRECTORY ${FOLDER}/man${section})
endforeach()
page(trainer 1 "fine-tune language models in FP8, on any number of MPI ranks" --help --include=${SECTIONS}/trainer.h2m)
page(trainer-config 5 "keys of a training configuration" "train --help"
     --include=${SECTIONS}/trainer-config.h2m)
page(trainer-environment 7 "environment variables of trainer" "--help environment")

# A command has a line "  NAME   summary"; the summary may continue on indented lines.
string(REGEX REPLACE "\n            +" " " overview "${overview}")
string(REPLACE ";" "," overview "${overview}")
string(REGEX MATCHALL "\n  [a-z-]+  +[^\n]+" lines "${overview}")
foreach(line ${lines})
  string(REGEX MATCH "^\n  ([a-z-]+)  +(.*)$" found "${line}")
  page(trainer-${CMAKE_MATCH_1} 1 "${CMAKE_MATCH_2}" "${CMAKE_MATCH_1} --help")
endforeach()
