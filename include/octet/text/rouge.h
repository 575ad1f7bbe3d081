// Similarity of two answers by their words.
#pragma once

#include <string_view>

namespace octet::text {

/// Returns ROUGE-L: the F1 of the longest common subsequence of words, 0 to 1. Words are runs of letters and
/// digits, with ASCII letters in lower case. ASCII texts thus score like Google's rouge_score without its
/// stemmer. Returns 0 if either text has no word.
double rouge_l(std::string_view answer, std::string_view expected);

}  // namespace octet::text
