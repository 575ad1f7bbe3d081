// The splits of a folder of data, found as Hugging Face's `datasets` finds them.
#pragma once

#include <string>
#include <vector>

namespace octet::data {

/// A split and its files, as whole paths.
struct Split {
  std::string name;
  std::vector<std::string> files;
  bool operator==(const Split&) const = default;
};

/// Which part of a folder is read.
struct SplitChoice {
  std::string folder;
  std::string subset;  ///< configuration of the card, or a folder below; "": the default
  std::string split;   ///< "": train, or for evaluation the first of validation, test and train
  bool evaluates = false;
  std::string name;   ///< of the data set, for messages
  std::string where;  ///< what names it, for messages
};

/// Returns the splits of a folder. The first of these rules that finds a file decides: the configuration
/// `subset` of its card; names such as data/NAME-00000-of-00002.parquet; folders named after a split; files
/// named after a split; otherwise all files are the split train. Throws Error (usage) if there is no such
/// subset.
std::vector<Split> splits_of(const SplitChoice& choice);

/// Returns the files of the chosen split and logs the splits that are not read. Throws Error (usage) that
/// lists the splits if the chosen one is not there. Returns nothing for a folder without data files.
std::vector<std::string> files_of_split(const SplitChoice& choice);

}  // namespace octet::data
