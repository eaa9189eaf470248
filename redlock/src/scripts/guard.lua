-- The head of every script. Run without keys it does nothing: so a server gets to know it at each connection.
if #KEYS == 0 then return 0 end
