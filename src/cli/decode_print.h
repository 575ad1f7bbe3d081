// Prints the results of `trainer bench MODEL --decode`.
#pragma once

#include <string>

#include "octet/bench/decode_bench.h"

namespace octet::cli {

/// Print the results: for people, and with --json as one line. `device` is the description of the device.
void print_decode_table(const std::string& device, const bench::DecodeBench& b,
                        const bench::DecodeResult& result);
void print_decode_json(const std::string& device, const bench::DecodeBench& b,
                       const bench::DecodeResult& result);

}  // namespace octet::cli
