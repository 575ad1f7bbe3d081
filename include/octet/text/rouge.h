// How near an answer is to another one, in words.
#pragma once

#include <string_view>

namespace octet::text {

/// ROUGE-L: the F1 of the longest common subsequence of words, 0 to 1. Words are runs of letters and digits,
/// their ASCII letters lower case, so that ASCII texts score as Google's rouge_score does without its
/// stemmer. 0 where either text has no word.
double rouge_l(std::string_view answer, std::string_view expected);

}  // namespace octet::text
