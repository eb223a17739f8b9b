-- The fields of the record of a hold and of a wait, see keys.lua. The items begin at the last one.
-- The linker writes the numbers instead of the names.
local H_SESSION = 1
local H_TOKEN = 2
local H_SINCE = 3
local H_LIMITS = 4
local H_ASKED = 5
local H_INFO = 6
local H_ITEMS = 7
local W_SESSION = 1
local W_TICKET = 2
local W_SINCE = 3
local W_STATE = 4
local W_RESERVE = 5
local W_LIMITS = 6
local W_UNDER = 7
local W_INFO = 8
local W_ITEMS = 9
