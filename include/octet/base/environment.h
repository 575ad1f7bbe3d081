// The environment: every variable that the program, its launchers and its tests read, in one table. Nothing
// else asks for a variable: tests/base/environment_names sees to it. (A key of the configuration can be set
// as OCTET_<KEY>, which is the affair of octet/config/config.h.)
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

namespace octet {

/// What every variable of the program's own begins with.
inline constexpr std::string_view kOwnPrefix = "OCTETRUN_";

/// Who sets a variable, and for what.
enum class VariableUse {
  user,      ///< users of the program
  launcher,  ///< set by launch/mpirun, or read by the scripts alone
  test,      ///< tests and measurements: delays, failures, skipped parts
  foreign    ///< another program's or the system's, which this one reads too
};

struct EnvironmentVariable {
  const char* name;
  const char* values;   ///< valid values
  const char* meaning;  ///< what that does, and what happens where it is not set
  const char* reader;   ///< the file that reads it, below the folder of the sources
  VariableUse use;
};

/// The table, by use.
std::span<const EnvironmentVariable> environment_variables();

/// The text of a variable of the table, or null where it is not set. The text stays valid until the
/// environment is changed. A name that the table lacks is a defect: std::logic_error.
const char* environment_variable(const char* name);

/// Throws Error for a variable of `environment` (name and text) that begins as the program's own do and is
/// none of them, or says none of the words that its row lists where it lists words alone, and for one of the
/// program's own under the prefix of configuration keys (OCTET_SEED is one of those).
void require_known_variables(const std::map<std::string, std::string>& environment);

/// The table for the terminal.
std::string environment_help();
/// The table as the page docs/environment.md.
std::string environment_markdown();

}  // namespace octet
