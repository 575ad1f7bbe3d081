// Properties of collectives on ranks of every kind. All ranks of a communicator call each function together,
// as threads or under mpirun. The functions only use EXPECT, so that no rank returns early and leaves the
// others waiting.
#pragma once

#include "comm/claims_direct_sums.h"
#include "comm/claims_gathers.h"
#include "comm/claims_messages.h"
#include "comm/claims_order.h"
#include "comm/claims_sums.h"
#include "comm/claims_wires.h"
