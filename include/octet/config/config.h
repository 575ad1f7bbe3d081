// config: the user's settings as typed values, in parts (keys.h).
//
// One table (key_table.h) defines each key: name, type, default, range, choices, documentation and aliases.
// It also says whether the key is used, accepted without effect, or refused. Parsing, --help, docs/config.md
// and the resolved dump are generated from the table.
//
// Each dialect (SFT-Play, verl, axolotl) has a table that translates its keys to keys of Octet, and so has
// DeepSpeed's JSON. A configuration has at most one dialect. This module does not depend on the world size:
// functions that need it take it as an argument (derive.h). No key is ignored silently: it is used, noted
// once, or refused with a reason.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "octet/config/keys.h"

namespace octet::config {

/// The resolved configuration: all of its parts.
struct Config : ModelKeys,
                DataKeys,
                BatchKeys,
                ScheduleKeys,
                OptimizerKeys,
                TokenLossKeys,
                PreferenceKeys,
                TeacherKeys,
                ComputeKeys,
                ShardingKeys,
                MachineKeys,
                SaveKeys,
                FaultKeys,
                EvaluationKeys,
                LogKeys {};

/// The source of a value, weakest first.
enum class Source : std::uint8_t { fallback, environment, deepspeed, yaml, override_ };

/// Source and place ("config.yaml:12", "command line", "DS_JSON: zero_optimization.stage").
struct Origin {
  Source source = Source::fallback;
  std::string where;
  std::string key = {};  ///< the key as the user wrote it; empty: the native name
};

/// A resolved configuration with the origins of its values.
struct Resolved {
  Config config;
  std::string path;  ///< the YAML or JSON file; empty if everything is on the command line
  std::map<std::string, Origin> origins;  ///< by key; keys not listed have their default
  Strings notes;                          ///< sentences for the log, each logged once
  Strings warnings;     ///< settings that do harm and that other trainers accept silently: place, harm, fix
  std::string dialect;  ///< trainer of the foreign keys in the configuration; empty: only keys of Octet
  std::map<std::string, std::string> extra;  ///< accepted keys that change nothing, as written

  bool is_set(const std::string& key) const { return origins.contains(key); }
  /// Returns the whole resolved configuration as YAML, which loads to the same configuration.
  std::string to_yaml() const;
};

using Environment = std::map<std::string, std::string>;
/// Returns the environment variables that this process had at the first call.
Environment process_environment();

struct LoadOptions {
  /// Training needs a model, data and an output folder; other commands need less.
  bool for_training = true;
  Environment environment = process_environment();
};

/// Reads the arguments of a command: at most one path that ends in .yaml, .yml or .json, and overrides, in
/// any order. Overrides are key=value, --key=value, --key value, or --flag for a bool ("a.b=c" changes an
/// entry of a map). Throws Error (ExitCode::usage) for anything unknown, mistyped, out of range,
/// contradictory or unsupported.
Resolved load(const Strings& arguments, const LoadOptions& options = {});

/// Like load(), but reads YAML text from memory. `name` names the file in messages.
Resolved load_text(const std::string& yaml, const std::string& name, const Strings& overrides = {},
                   const LoadOptions& options = {});

/// Returns a hash (32 hexadecimal digits) of all keys that determine the results of a run: model, data,
/// order, batch, schedule, precision. Folders, logging, saving, stage and overlap do not change it.
std::string resume_hash(const Config& config);

/// Returns the keys in resume_hash() that differ between a saved run and this run, each as "key: saved ->
/// now". A resumed run reports them.
Strings resume_differences(const Config& saved, const Config& now);

}  // namespace octet::config
